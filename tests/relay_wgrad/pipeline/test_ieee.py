"""Kernels that are fused compute with floating-point numbers, not with real ones."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.script import relax as R

from legalize.cpu import host_target
from relay_wgrad import relay
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.cuda import cuda_pipeline
from tests.fuzz.arithmetic import GENERATOR
from tests.support.compiled import virtual_machine
from tests.support.cuda_source import cuda_source
from tests.support.ieee import wrong


@pytest.mark.share(3)  # float16 and bfloat16
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_fused_kernels(dtype: str) -> None:
    assert not wrong(dtype, "llvm", cpu_pipeline(), tvm.cpu())


@pytest.mark.parametrize("length", [1, 3000])
def test_bfloat16_that_is_read_again_is_rounded(length: int) -> None:
    """Also where no memory is between; ties go to the even one, NaN and infinities stay."""
    x = relax.Var("x", relax.TensorType((length,), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            half = bb.emit(R.astype(bb.emit(R.multiply(x, R.const(3.0, "float32"))), "bfloat16"))
            out = bb.emit_output(R.multiply(R.astype(half, "float32"), R.const(2.0, "float32")))
        bb.emit_func_output(out)
    vm = virtual_machine(bb.get(), "llvm", cpu_pipeline())
    numbers = np.random.default_rng(0).standard_normal(length).astype("float32")
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.00390625 / 3, 3e38, 1e-40], "float32")
    numbers[: len(special)] = special[:length]
    with np.errstate(over="ignore"):
        tripled = numbers * np.float32(3)
        want = tripled.astype(ml_dtypes.bfloat16).astype("float32") * np.float32(2)
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(numbers)).numpy(), want)


@pytest.mark.usefixtures("registered")
def test_bfloat16_that_is_rounded_often_goes_through_all_of_tvms_lowering() -> None:
    """An exported library's: what is named for it is of the block that it is in."""
    x = relax.Var("x", relax.TensorType((100,), "bfloat16"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(R.min(bb.emit(R.exp(x)), [0], keepdims=True))
        bb.emit_func_output(out)
    built = tvm.compile(bb.get(), "llvm", relax_pipeline=cpu_pipeline())
    numbers = np.random.default_rng(0).standard_normal(100).astype(ml_dtypes.bfloat16)
    found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(numbers)).numpy()
    want = np.exp(numbers.astype("float32")).astype(ml_dtypes.bfloat16).min()
    np.testing.assert_array_equal(found, [want])


def test_bfloat16_is_rounded_after_each_operator() -> None:
    """Arithmetic, choices and functions of one kernel; long chains are not longer for it."""
    x, y = (relax.Var(name, relax.TensorType((3000,), "bfloat16")) for name in "xy")
    rng = np.random.default_rng(0)
    numbers = [rng.standard_normal(3000).astype(ml_dtypes.bfloat16) for _ in range(2)]
    bb = relax.BlockBuilder()
    with bb.function("main", [x, y]):
        with bb.dataflow():
            value, want = x, numbers[0]
            for _ in range(16):
                value, want = R.multiply(R.add(value, y), y), (want + numbers[1]) * numbers[1]
            root = np.sqrt(np.abs(want).astype("float32")).astype(ml_dtypes.bfloat16)
            above, want = want <= numbers[1], np.where(want <= numbers[1], want - numbers[1], root)
            value = bb.emit(value)
            chosen = R.less_equal(value, y), R.subtract(value, y), R.sqrt(R.abs(value))
            value = bb.emit(R.where(*chosen))
            out = bb.emit_output(
                R.tuple(R.nn.relu(value), R.astype(R.exp(R.negative(R.abs(value))), "float32"))
            )
        bb.emit_func_output(out)
    assert 0.1 < above.mean() < 0.9
    vm = virtual_machine(bb.get(), "llvm", cpu_pipeline())
    positive, powers = (g.numpy() for g in vm["main"](*map(tvm.runtime.tensor, numbers)))
    np.testing.assert_array_equal(positive, np.maximum(want, ml_dtypes.bfloat16(0)))
    wide = np.exp(-np.abs(want.astype("float32"))).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(powers, wide.astype("float32"))


@pytest.mark.share(5)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [15, 16, 32])
@pytest.mark.parametrize("has_relu", [False, True])
def test_bfloat16_in_loops_of_vectors(layout: str, channels: int, has_relu: bool) -> None:
    """What follows a convolution, and a mean over pixels, which TVM's schedules vectorize."""
    rng = np.random.default_rng(0)
    numbers = [rng.standard_normal(s) for s in ((8, 3, 16, 16), (channels, 3, 3, 3), (channels,))]
    given = [n.astype(ml_dtypes.bfloat16) for n in numbers]
    x, w, b = (
        relax.Var(name, relax.TensorType(n.shape, "bfloat16"))
        for name, n in zip("xwb", given, strict=True)
    )
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w, b]):
        with bb.dataflow():
            y = bb.emit(R.nn.conv2d(x, w, out_dtype="float32"))
            if layout == "NHWC":
                y = bb.emit(R.permute_dims(y, (0, 2, 3, 1)))
            y = bb.emit(R.astype(y, "bfloat16"))
            bias = R.reshape(b, (1, channels, 1, 1) if layout == "NCHW" else (1, 1, 1, channels))
            y = bb.emit(R.add(y, bb.emit(bias)))
            y = bb.emit(R.nn.relu(y)) if has_relu else y
            axes = [2, 3] if layout == "NCHW" else [1, 2]
            out = bb.emit_output(R.mean(bb.emit(R.astype(y, "float32")), axes))
        bb.emit_func_output(out)
    executable = virtual_machine(bb.get(), host_target(), cpu_pipeline())
    main = executable["main"]
    got = main(*map(tvm.runtime.tensor, given)).numpy()
    wide = [torch.from_numpy(n.astype("float64")) for n in given]
    want = torch.conv2d(*wide)
    want = (torch.relu(want) if has_relu else want).mean((2, 3)).numpy()
    assert np.linalg.norm(got - want) < 4e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("pipeline", ["cpu", "relay"])
def test_constants_are_compared_as_numbers_are(pipeline: str) -> None:
    """Folding compiles kernels of its own, in which TVM's `!=` was false for NaN."""
    line = f"float32 {pipeline} 57758: where(ne(big,div(m0,0)),y,x)"
    assert GENERATOR.answer(line) == {"status": "passed", "message": ""}


def test_relay_folds_comparisons_as_numbers_are() -> None:
    nan, one = (relay.const(np.float32(v)) for v in (np.nan, 1))
    for op, want in ((relay.not_equal, True), (relay.equal, False), (relay.less, False)):
        module = relay.IRModule.from_expr(relay.Function([], op(nan, one)))
        folded = relay.transform.FoldConstant()(relay.transform.InferType()(module))
        assert bool(folded["main"].body.data.numpy()) is want, op


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cuda_makes_zeros_of_bits_in_its_own_words(dtype: str) -> None:
    """TVM's `reinterpret` of a number takes the number's address, which no C++ compiler does."""
    x = relax.Var("x", relax.TensorType((1, 4, 4, 8), dtype))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit(R.negative(bb.emit(R.multiply(x, R.const(0.0, dtype)))))
            pooled = bb.emit(R.nn.avg_pool2d(out, (1, 1), layout="NHWC"))  # begins at 0 / 1
            result = bb.emit_output(relax.Tuple([out, pooled]))
        bb.emit_func_output(result)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    made = [tvm.compile(bb.get(), target=target, relax_pipeline=cuda_pipeline()).mod]
    for module in made:
        made += list(module.imports)
    sources = [module.inspect_source() for module in made if str(module.kind) == "cuda"]
    assert any("__int_as_float(-2147483648)" in source for source in sources)
    assert not any("(&(" in source for source in sources)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("shape", [(4096,), (64, 37)], ids=str)
def test_cuda_has_words_for_a_bfloat16_that_is_no_number(
    shape: tuple[int, ...], number: float
) -> None:
    """TVM writes `nanf` and `inff`; an index that is out of bounds gives NaN, a mask -inf."""
    x = relax.Var("x", relax.TensorType(shape, "bfloat16"))
    kept = relax.Var("kept", relax.TensorType(shape, "bool"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, kept]):
        with bb.dataflow():
            out = bb.emit_output(R.where(kept, x, R.const(number, "bfloat16")))
        bb.emit_func_output(out)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    source = cuda_source(tvm.compile(bb.get(), target, relax_pipeline=cuda_pipeline()).mod)
    word = np.asarray(number, ml_dtypes.bfloat16).view(np.uint16)
    assert f"__ushort_as_bfloat16((ushort){word})" in source
    assert not {"nanf", "inff"} & set(re.findall(r"\w+", source))


@pytest.mark.usefixtures("registered")
def test_relay_multiplies_by_zero() -> None:
    x = relay.var("x", shape=(3,), dtype="float32")
    product = relay.multiply(x, relay.const(np.float32(0)))
    module = relay.IRModule.from_expr(relay.Function([x], product))
    made = relay.graph_executor.GraphModule(relay.build(module, "llvm")["default"](tvm.cpu()))
    made.run(x=np.array([np.nan, np.inf, -1], "float32"))
    np.testing.assert_array_equal(made.get_output(0).numpy(), [np.nan, np.nan, 0])
