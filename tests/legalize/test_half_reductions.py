"""Sums of half-precision numbers are float32's: the plainest, and some of the generator's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import Op

import legalize.cpu
import relay_wgrad
from relay_wgrad import relay
from relay_wgrad.ops.half_reductions import REDUCTIONS
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.relay.graph_executor import GraphModule
from tests.fuzz import half
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")


def by_relay(x: np.ndarray, body: Any) -> np.ndarray:
    data = relay.var("x", shape=x.shape, dtype=str(x.dtype))
    mod = relay.IRModule.from_expr(relay.Function([data], body(data)))
    executor = GraphModule(relay.build(mod, legalize.cpu.host_target())["default"](tvm.cpu()))
    executor.run(x=x)
    return np.asarray(executor.get_output(0).numpy())


def test_relays_means() -> None:
    """They were 0.653 and 0.163, and of more than 65,504 elements there was none."""
    ones = np.ones((1, 1, 56, 56), "float16")
    assert by_relay(ones, lambda x: relay.mean(x, axis=[2, 3])) == 1
    uniform = np.random.default_rng(0).random((1, 1, 112, 112)).astype("float16")
    got = by_relay(uniform, lambda x: relay.nn.global_avg_pool2d(x))
    assert got.reshape(()) == np.float16(uniform.astype("float64").mean())
    large = np.full((1, 1, 512, 768), 3, "float16")
    assert by_relay(large, lambda x: relay.mean(x)) == 3


CASES = """
surface=relay op=nn.layer_norm mode=value dtype=float16 n=4096 fill=offset
surface=relay op=variance mode=value dtype=bfloat16 n=70000 fill=offset
surface=relay op=mean mode=gradient dtype=float16 n=100352 fill=ones
surface=relay op=mean mode=gradient dtype=bfloat16 n=70000 fill=offset
surface=relay op=nn.nll_loss mode=gradient dtype=float16 n=262144 fill=offset seed=7350
surface=relay op=max mode=gradient dtype=float16 n=70000 fill=ones
surface=relay op=nn.log_softmax mode=gradient dtype=float16 n=70000 fill=ones
surface=relax op=max mode=gradient dtype=float16 n=70000 fill=ones
surface=relax op=nn.log_softmax mode=gradient dtype=float16 n=262144 fill=ones
surface=relay op=nn.bias_add mode=gradient dtype=float16 n=70000 fill=uniform
surface=relax op=sum mode=value dtype=float16 n=100352 fill=uniform
surface=relax op=nn.softmax mode=value dtype=float16 n=70000 fill=ones
surface=relax op=nn.group_norm mode=value dtype=float16 n=70000 fill=offset
surface=relax op=variance mode=gradient dtype=float16 n=70000 fill=offset
surface=relax op=nn.avg_pool2d mode=value dtype=bfloat16 n=70000 fill=uniform
surface=relax op=matmul mode=value dtype=bfloat16 n=70000 fill=offset
surface=relax op=matmul-of-batches mode=value dtype=float16 n=4096 fill=offset
surface=relax op=matmul-with-out_dtype mode=value dtype=float16 n=4096 fill=normal
surface=relax op=nn.conv1d_transpose mode=value dtype=bfloat16 n=4096 fill=uniform
surface=relax op=cumsum mode=value dtype=float16 n=4096 fill=ones
surface=relax op=take mode=gradient dtype=float16 n=4096 fill=ones
surface=relax op=bias mode=gradient dtype=float16 n=70000 fill=ones"""


@pytest.mark.share(3)
@pytest.mark.longer_cases(
    "surface=relay op=max mode=grad",
    "surface=relay op=nn.log_softmax mode=grad",
    why="Relay's are lowered to Relax's, which stay",
)
@pytest.mark.parametrize("line", CASES.strip().splitlines())
def test_generated(line: str) -> None:
    assert half.check(f"pipeline=ours seed=0 {line}") is None


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_maxima_that_many_windows_share(layout: str) -> None:
    """The middle is the maximum of 64 x 64 windows, so its gradient is that many ones."""
    shape = (1, 1, 127, 127) if layout == "NCHW" else (1, 127, 127, 1)
    data = np.zeros(shape, "float16")
    data.reshape(-1)[127 * 63 + 63] = 1
    grad = np.ones((1, 1, 64, 64) if layout == "NCHW" else (1, 64, 64, 1), "float16")
    arrays = (grad, data)
    params = [
        relax.Var(f"x{i}", relax.TensorType(a.shape, "float16")) for i, a in enumerate(arrays)
    ]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            call = relax.op.grad.max_pool2d_backward(*params, (64, 64), layout=layout)
            out = bb.emit_output(call)
        bb.emit_func_output(out)
    vm = virtual_machine(bb.get(), legalize.cpu.host_target())
    got = vm["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    assert (got == data * 4096).all()


def _rounded(x: Any, dtype: str) -> Any:
    return relax.op.astype(relax.op.broadcast_to(x, (1024, 32)), dtype)


@pytest.mark.parametrize(
    ("dtype", "shape", "make"),
    [
        ("bfloat16", (1024, 1), lambda x: _rounded(x, "bfloat16")),
        ("bfloat16", (1, 32), lambda _: relax.op.zeros((1024, 32), "bfloat16")),
        ("float8_e4m3fn", (1, 32), lambda x: _rounded(x, "float8_e4m3fn")),
        ("bool", (1, 32), lambda x: relax.op.sum(_rounded(x, "bool"), [0])),
    ],
)
def test_types_without_vectors(dtype: str, shape: tuple[int, int], make: Any) -> None:
    """A large tensor of one number, or of a type that LLVM has not, did not compile."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(make(x))
        bb.emit_func_output(out)
    exe = virtual_machine(bb.get(), legalize.cpu.host_target(), cpu_pipeline())
    given = tvm.runtime.tensor(np.ones(shape, "float32"))
    got = exe["main"](given).numpy()
    assert got.dtype == dtype
    got = got.astype("float32")
    assert len(np.unique(got)) == 1
    assert got.flat[0] in (0, 1)


@pytest.mark.usefixtures("registered")
def test_every_row_is_lowered() -> None:
    """Numbers are those of the lines above, and of the generator's."""
    from tests.support.half_cases import RELAX, operands

    for row in RELAX:
        arrays = operands(row.specs(8), "float16", "uniform", 0)
        params = [
            relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype)))
            for i, a in enumerate(arrays)
        ]
        bb = relax.BlockBuilder()
        with bb.function("main", params):
            with bb.dataflow():
                out = bb.emit_output(bb.emit(row.call(relax.op, params, 8)))
            bb.emit_func_output(out)
        relax.analysis.well_formed(relax.transform.LegalizeOps()(bb.get()))


def test_stock_pipeline() -> None:
    line = "surface=relax op=mean mode=value dtype=float16 n=100352 fill=uniform"
    assert half.check(f"{line} pipeline=stock seed=0") is None


def test_every_reduction_has_a_row() -> None:
    from tests.support.half_cases import RELAX

    tested = {f"relax.{row.name.partition(' ')[0]}" for row in RELAX}
    # By gradients of others; of attention; of what is no reduction.
    tested |= {
        "relax.grad.nll_loss_backward", "relax.grad.avg_pool2d_backward",
        "relax.grad.take_backward", "relax.nn.attention_bias", "relax.power",
    }  # fmt: skip
    assert set(REDUCTIONS) <= tested


def test_other_types_keep_upstreams_kernels() -> None:
    x = relax.Var("x", relax.TensorType((3, 5), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.variance(x, [1]))
        bb.emit_func_output(out)
    ours = relax.transform.LegalizeOps()(bb.get())
    relay_wgrad.unregister()
    tvm.ir.assert_structural_equal(ours, relax.transform.LegalizeOps()(bb.get()))
    relay_wgrad.register()


def test_symbolic_sizes() -> None:
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((2, n), "float16"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            total = bb.emit(relax.op.mean(x, [1]))
            products = bb.emit(relax.op.matmul(x, relax.op.permute_dims(x)))
            out = bb.emit_output(relax.Tuple([total, products]))
        bb.emit_func_output(out)
    vm = virtual_machine(bb.get(), legalize.cpu.host_target())
    ones = np.full((2, 10_000), 0.5, "float16")
    mean, products = vm["main"](tvm.runtime.tensor(ones))
    assert (mean.numpy() == 0.5).all()
    assert (products.numpy() == 2500).all()


def test_unregistering_brings_upstreams_back() -> None:
    relay_wgrad.unregister()
    upstream = Op.get("relax.mean").get_attr("FLegalize")
    relay_wgrad.register()
    assert not Op.get("relax.mean").get_attr("FLegalize").same_as(upstream)
    relay_wgrad.unregister()
    assert Op.get("relax.mean").get_attr("FLegalize").same_as(upstream)
    relay_wgrad.register()
