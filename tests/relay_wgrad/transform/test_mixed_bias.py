"""What mixed precision keeps in half: biases of convolutions, average pooling of half tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.transform import grad, mixed_precision
from relay_wgrad.transform.mixed_precision import accumulate_wide
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")
op, nn = relax.op, relax.op.nn
X, W = (1, 2, 60, 60), (4, 2, 1, 1)


def forward(bias: tuple[int, ...], swapped: bool = False, layout: str = "NCHW") -> tvm.IRModule:
    """The sum of a convolution's result and a bias."""
    kernel = "OIHW" if layout == "NCHW" else "OHWI"
    shapes = [tuple(s["NCHW".index(c)] for c in layout) for s in (X, W)]
    names = ("x", *shapes[:1]), ("w", *shapes[1:]), ("b", bias)
    variables = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in names]
    bb = relax.BlockBuilder()
    with bb.function("main", variables):
        with bb.dataflow():
            x, w, b = variables
            y = bb.emit(nn.conv2d(x, w, data_layout=layout, kernel_layout=kernel))
            z = bb.emit(op.add(b, y) if swapped else op.add(y, b))
            out = bb.emit_output(op.sum(bb.emit(nn.relu(z))))
        bb.emit_func_output(out)
    return bb.get()


def dtypes(mod: tvm.IRModule, fn: str, name: str) -> list[str]:
    values = [b.value for b in mod[fn].body.blocks[0].bindings]
    return [str(v.args[0].ty.dtype) for v in values if op_name(v) == f"relax.{name}"]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("bias", "layout"),
    [((1, 4, 1, 1), "NCHW"), ((4, 1, 1), "NCHW"), ((4,), "NHWC"), ((1,), "NCHW")],
)
def test_a_value_per_channel_is_added_in_half(
    bias: tuple[int, ...], layout: str, swapped: bool
) -> None:
    mod = mixed_precision(forward(bias, swapped, layout), dtype="bfloat16")
    assert dtypes(mod, "main", "add") == ["bfloat16"]


@pytest.mark.parametrize("bias", [(1, 4, 60, 60), (60,), (1, 1, 60, 1)])
def test_another_sum_is_float32(bias: tuple[int, ...]) -> None:
    assert dtypes(mixed_precision(forward(bias), dtype="bfloat16"), "main", "add") == ["float32"]


@pytest.mark.share(3)
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("wide", [True, False])
def test_gradients_are_float32_sums(half: str, wide: bool) -> None:
    """A sum of 3,600 ones in half stops at 2,048, or at 256."""
    mod: Any = grad(mixed_precision(forward((1, 4, 1, 1)), dtype=half), "main", wrt=["b"])
    mod = accumulate_wide(mod, ADJOINT, weight_gradients=wide)
    assert dtypes(mod, ADJOINT, "collapse_sum_to") == ["float32"]
    made = virtual_machine(tvm.IRModule({ADJOINT: mod[ADJOINT]}), "llvm", cpu_pipeline())
    args = [np.ones(s, "float32") for s in (X, W, (1, 4, 1, 1))]
    got = made[ADJOINT](*map(tvm.runtime.tensor, args))[1][0]
    np.testing.assert_array_equal(got.numpy(), np.full((1, 4, 1, 1), 3600))


@pytest.mark.parametrize(("size", "dtype"), [(2, "float16"), (60, "float32")])
def test_average_pooling_follows_but_of_whole_images(size: int, dtype: str) -> None:
    """Joined with a half tensor it would make all of a dense block float32."""
    x, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", X), ("w", W)))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            y = bb.emit(nn.conv2d(x, w))
            z = bb.emit(nn.avg_pool2d(y, (size, size), (size, size)))
            out = bb.emit_output(op.sum(bb.emit(op.concat([z, z], 1))))
        bb.emit_func_output(out)
    mod = mixed_precision(bb.get(), dtype="float16")
    assert dtypes(mod, "main", "nn.avg_pool2d") == [dtype]
    (joined,) = (b.value for b in mod["main"].body.blocks[0].bindings if "concat" in str(b.value))
    assert str(joined.ty.dtype) == dtype


@pytest.mark.parametrize("also", [False, True])
def test_what_joins_both_types_is_half_where_all_readers_take_it(also: bool) -> None:
    """The bits are those of rounding after the join; another reader needs float32."""
    x, w = (
        relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", X), ("w", (4, 6, 1, 1)))
    )
    v = relax.Var("v", relax.TensorType(W, "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w, v]):
        with bb.dataflow():
            y = bb.emit(nn.conv2d(x, v))
            joined = bb.emit(op.concat([bb.emit(op.exp(x)), y], 1))
            total = bb.emit(op.sum(bb.emit(nn.conv2d(joined, w))))
            if also:
                total = bb.emit(op.add(total, bb.emit(op.sum(joined))))
            out = bb.emit_output(total)
        bb.emit_func_output(out)
    mod = mixed_precision(bb.get(), dtype="float16")
    (made,) = (b.value for b in mod["main"].body.blocks[0].bindings if "concat" in str(b.value))
    assert str(made.ty.dtype) == ("float32" if also else "float16")
