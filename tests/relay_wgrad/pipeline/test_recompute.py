"""Recomputing of cheap results: which are stored, and that values stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import relax as R

from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.pipeline.recompute import Recompute
from relay_wgrad.transform import grad
from tests.support.compiled import virtual_machine

SHAPE = (4, 8, 8, 16)
ROW = (1, 1, 1, 16)
Program = Callable[..., list[relax.Expr]]


def module(program: Program, count: int = 1, dtype: str = "float32") -> tvm.IRModule:
    """`program` of tensors x0… of SHAPE and a row r; what it returns are the results."""
    bb = relax.BlockBuilder()
    large = [relax.Var(f"x{i}", relax.TensorType(SHAPE, dtype)) for i in range(count)]
    row = relax.Var("r", relax.TensorType(ROW, dtype))
    with bb.function("main", [*large, row]):
        with bb.dataflow():
            out = bb.emit_output(relax.Tuple([bb.emit(e) for e in program(bb, *large, row)]))
        bb.emit_func_output(out)
    return bb.get()


def fused(mod: tvm.IRModule, recomputed: bool = True) -> tvm.IRModule:
    passes = [p for p in fused_kernels() if recomputed or p.info.name != "relay_wgrad.recompute"]
    with tvm.target.Target("llvm"):
        return tvm.transform.Sequential(passes)(mod)


def stored(mod: tvm.IRModule) -> int:
    """How many kernels write numbers of SHAPE."""
    return sum(
        isinstance(b.value.ty, relax.TensorType)
        and str(b.value.ty.dtype) != "bool"
        and [int(x) for x in b.value.ty.shape.values] == list(SHAPE)
        for block in mod["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call)
    )


def outputs(mod: tvm.IRModule, values: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    vm = virtual_machine(mod)
    return [t.numpy() for t in vm["main"](*[tvm.runtime.tensor(v) for v in values])]


def sums(*values: relax.Expr) -> list[relax.Expr]:
    return [R.sum(v, [0, 1, 2]) for v in values]


def centred(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
    c = bb.emit(R.subtract(x, r))
    return [*sums(R.multiply(c, c)), *sums(R.exp(c)), *sums(c)]


def chain(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
    a = bb.emit(R.subtract(x, r))
    b = bb.emit(R.multiply(a, r))
    return [*sums(R.tanh(b)), *sums(R.multiply(a, b)), *sums(R.sqrt(R.abs(b)))]


def diamond(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
    a = bb.emit(R.subtract(x, r))
    return sums(R.multiply(R.tanh(a), R.exp(a)))


def a_result(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
    a = bb.emit(R.subtract(x, r))
    return [a, *sums(R.exp(a)), *sums(R.tanh(a))]


def not_fused(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
    a = bb.emit(R.subtract(x, r))
    return [*sums(R.nn.softmax(a)), *sums(R.exp(a)), *sums(R.tanh(a))]


def two_near(bb: relax.BlockBuilder, x: relax.Var, y: relax.Var, r: relax.Var) -> list[relax.Expr]:
    a = bb.emit(R.add(x, y))
    return [*sums(R.exp(a)), *sums(R.multiply(a, r))]


def two_far(bb: relax.BlockBuilder, x: relax.Var, y: relax.Var, r: relax.Var) -> list[relax.Expr]:
    a = bb.emit(R.add(R.cumsum(x, 0), R.cumsum(y, 0)))  # made, and not kept
    first = [bb.emit(v) for v in sums(R.exp(a))]
    for _ in range(80):
        r = bb.emit(R.tanh(r))
    return [*first, *sums(R.multiply(a, r))]


def many(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
    a = bb.emit(R.subtract(x, r))
    return [v for i in range(9) for v in sums(R.exp(R.multiply(a, R.const(i / 9, "float32"))))]


def mask(bb: relax.BlockBuilder, x: relax.Var, y: relax.Var, r: relax.Var) -> list[relax.Expr]:
    """What reads y's sign comes late in the program."""
    a = bb.emit(R.add(x, y))
    kept = bb.emit(R.nn.relu(a))
    first = bb.emit(R.sum(kept, [0, 1, 2]))
    for _ in range(80):
        r = bb.emit(R.tanh(r))
    return [kept, first, *sums(R.where(R.less(a, R.const(0.0, "float32")), r, kept))]


def a_view(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
    """A kernel that is not fused reads it in another form, as a library's product does."""
    a = bb.emit(R.subtract(x, r))
    rows = bb.emit(R.reshape(a, R.shape((256, 16))))
    return [R.sum(bb.emit(R.nn.softmax(rows)), [0]), *sums(R.exp(a)), *sums(R.tanh(a))]


# name -> (program, large operands, large tensors that kernels write without and with the pass)
PROGRAMS: dict[str, tuple[Program, int, int, int]] = {
    "three sums": (centred, 1, 1, 0),
    "a chain": (chain, 1, 2, 0),
    "a diamond": (diamond, 1, 0, 0),
    "a result": (a_result, 1, 1, 1),
    "a kernel that is not fused": (not_fused, 1, 2, 2),
    "two operands, near": (two_near, 2, 1, 0),
    "two operands, far": (two_far, 2, 3, 3),
    "nine kernels": (many, 1, 1, 1),
    "a view": (a_view, 1, 1, 1),
    "a mask": (mask, 2, 2, 1),
}


@pytest.mark.longer_cases("a mask")
@pytest.mark.share(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_stored(name: str) -> None:
    program, count, without, within = PROGRAMS[name]
    mod = module(program, count)
    plain, new = fused(mod, recomputed=False), fused(mod)
    assert (stored(plain), stored(new)) == (without, within)
    relax.analysis.well_formed(new)
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(SHAPE).astype("float32") for _ in range(count)]
    values.append(rng.standard_normal(ROW).astype("float32"))
    for got, want in zip(outputs(new, values), outputs(plain, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_row_is_not_computed_for_each_element() -> None:
    def rows(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
        s = bb.emit(R.sqrt(R.add(r, R.const(1.0, "float32"))))
        return [*sums(R.divide(x, s)), *sums(R.multiply(x, s))]

    script = fused(module(rows)).script()
    assert script.count("T.sqrt") == 1


def test_batch_normalization_and_its_gradient(registered: None) -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    scale = relax.Var("scale", relax.TensorType(ROW, "float32"))
    with bb.function("main", [x, scale]):
        with bb.dataflow():
            c = bb.emit(R.subtract(x, bb.emit(R.mean(x, [0, 1, 2], keepdims=True))))
            variance = bb.emit(R.mean(bb.emit(R.multiply(c, c)), [0, 1, 2], keepdims=True))
            root = bb.emit(R.sqrt(R.add(variance, R.const(1e-5, "float32"))))
            y = bb.emit(R.nn.relu(R.multiply(R.divide(c, root), scale)))
            out = bb.emit_output(R.sum(R.multiply(y, y)))
        bb.emit_func_output(out)
    mod = grad(bb.get(), "main", wrt=["x", "scale"])
    mod["main"] = mod["main_adjoint"].with_attr("global_symbol", "main")
    del mod["main_adjoint"]
    plain, new = fused(mod, recomputed=False), fused(mod)
    assert stored(new) <= 3 < 6 <= stored(plain)


def test_symbolic_sizes_are_stored() -> None:
    n = tirx.Var("n", "int64")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, 16), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            a = bb.emit(R.exp(x))
            out = bb.emit_output(relax.Tuple([bb.emit(R.sum(R.tanh(a))), bb.emit(R.max(a))]))
        bb.emit_func_output(out)
    plain = fused(bb.get(), recomputed=False)
    tvm.ir.assert_structural_equal(Recompute()(plain), plain)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("name", ["relu", "clip"])
def test_nan_is_kept(name: str, dtype: str) -> None:
    operator = {"relu": R.nn.relu, "clip": lambda v: R.clip(v, 0, 6)}[name]
    mod = module(lambda bb, x, r: [operator(x)], dtype=dtype)
    x = np.random.default_rng(0).standard_normal(SHAPE) * 8
    x = x.astype(dtype)
    want = np.clip(x, 0, 6) if name == "clip" else np.maximum(x, 0)
    if dtype != "int32":
        x[0, 1, 2, 3] = want[0, 1, 2, 3] = np.nan
    (got,) = outputs(fused(mod), [x, np.zeros(ROW, dtype)])
    np.testing.assert_array_equal(got, want)


def test_a_mean_of_integers_and_of_nothing_known() -> None:
    mod = module(lambda bb, x, r: [R.mean(x, [1, 2]), R.mean(x), R.mean(x, keepdims=True)])
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    got = outputs(fused(mod), [x, np.zeros(ROW, "float32")])
    for value, want in zip(got, (x.mean((1, 2)), x.mean(), x.mean(keepdims=True)), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-6)


def test_a_choice_reads_its_mask_as_it_is() -> None:
    """Numbers become part of the kernel, and operands are broadcast."""

    def program(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
        positive = R.greater(x, R.const(0.0, "float32"))
        return [
            R.where(positive, x, R.const(2.0, "float32")),
            R.where(R.greater(r, R.const(0.0, "float32")), x, R.const([3.0] * 16, "float32")),
            R.where(R.const(True, "bool"), r, x),
        ]

    mod = fused(module(program))
    assert "Cast" not in mod.script()
    rng = np.random.default_rng(0)
    x, r = (rng.standard_normal(shape).astype("float32") for shape in (SHAPE, ROW))
    want = [np.where(x > 0, x, 2), np.where(r > 0, x, 3), np.broadcast_to(r, SHAPE)]
    for got, value in zip(outputs(mod, [x, r]), want, strict=True):
        np.testing.assert_array_equal(got, value)


def test_what_is_read_counts_all_that_it_is_made_of() -> None:
    """Of a sum of two under a mask three kernels would read three tensors each: it is stored."""

    def program(
        bb: relax.BlockBuilder, a: relax.Var, b: relax.Var, y: relax.Var, r: relax.Var
    ) -> list[relax.Expr]:
        total = bb.emit(R.add(a, b))
        kept = bb.emit(R.where(R.less_equal(y, R.const(0.0, "float32")), r, total))
        return [*sums(R.multiply(kept, y)), *sums(R.exp(kept)), R.multiply(kept, r)]

    made = fused(module(program, 3))
    assert stored(made) == 2  # that, and the result
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(SHAPE).astype("float32") for _ in range(3)]
    values.append(rng.standard_normal(ROW).astype("float32"))
    a, b, y, r = (v.astype("float64") for v in values)
    kept = np.where(y <= 0, r, a + b)
    want = [(kept * y).sum((0, 1, 2)), np.exp(kept).sum((0, 1, 2)), kept * r]
    for got, right in zip(outputs(made, values), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [True, False])
def test_a_mask_of_what_is_kept_anyway_is_not_written(kept: bool) -> None:
    """Two kernels use a mask of what something that is not fused reads late, or early alone."""

    def program(
        bb: relax.BlockBuilder, x: relax.Var, y: relax.Var, r: relax.Var
    ) -> list[relax.Expr]:
        a = bb.emit(R.nn.softmax(x))
        other = None if kept else bb.emit(R.nn.softmax(a))
        for _ in range(80):
            r = bb.emit(R.tanh(r))
        other = bb.emit(R.nn.softmax(a)) if kept else other
        low = bb.emit(R.less(a, R.const(0.1, "float16")))
        return [*sums(R.where(low, r, y)), *sums(R.where(low, y, r)), *sums(other)]

    made = fused(module(program, 2, "float16")).script()
    assert ('dtype="bool")' in made.partition("R.function")[2]) == (not kept)


def test_a_mask_of_what_its_kernels_read_anyway_is_not_written() -> None:
    """Of one of two sums what the mask is made of is read for it alone: less than to store it."""

    def program(
        bb: relax.BlockBuilder, x: relax.Var, y: relax.Var, r: relax.Var
    ) -> list[relax.Expr]:
        z = bb.emit(R.multiply(x, r))
        low = bb.emit(R.less_equal(z, R.const(0.0, "float32")))
        passed = bb.emit(R.where(low, R.const(0.0, "float32"), y))
        return [*sums(passed), *sums(R.multiply(passed, x)), R.add(passed, x)]

    made = fused(module(program, 2))
    assert 'dtype="bool")' not in made.script().partition("R.function")[2]
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(SHAPE).astype("float32") for _ in range(2))
    r = rng.standard_normal(ROW).astype("float32")
    passed = np.where(x * r <= 0, 0, y).astype("float64")
    want = [passed.sum((0, 1, 2)), (passed * x).sum((0, 1, 2)), passed + x]
    for got, right in zip(outputs(made, [x, y, r]), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [True, False])
def test_half_of_what_is_kept_until_there_is_taken_there(kept: bool) -> None:
    """And used long after; where nobody else reads the whole till then it need not be kept."""
    late = 80

    def program(bb: relax.BlockBuilder, x: relax.Var, r: relax.Var) -> list[relax.Expr]:
        a = bb.emit(R.nn.softmax(x))
        early = bb.emit(R.nn.softmax(a))
        for _ in range(late):
            r = bb.emit(R.nn.softmax(r))
        other = bb.emit(R.nn.softmax(a)) if kept else early
        part = bb.emit(R.strided_slice(a, axes=[3], begin=[0], end=[8]))
        for _ in range(late):
            r = bb.emit(R.nn.softmax(r))
        return [bb.emit(R.nn.softmax(part)), r, other, *centred(bb, x, r)]

    (block,) = fused(module(program))["main"].body.blocks
    calls = [b.value for b in block.bindings if isinstance(b.value, relax.Call)]
    names = [str(call.args[0].name_hint) for call in calls if call.args]
    assert (names.index("strided_slice") > late) == kept


def test_what_stands_where_a_mask_goes_past_it() -> None:
    """The mask comes right after what it is of, before a difference that two sums recompute."""

    def program(
        bb: relax.BlockBuilder, x: relax.Var, y: relax.Var, r: relax.Var
    ) -> list[relax.Expr]:
        a = bb.emit(R.nn.softmax(x))
        early = bb.emit(R.nn.softmax(a))
        between = bb.emit(R.subtract(x, y))
        for _ in range(80):
            r = bb.emit(R.tanh(r))
        low = bb.emit(R.less(a, R.const(0.05, "float32")))
        values = R.where(low, r, y), R.exp(between), R.tanh(between), early
        return [each for value in values for each in sums(value)]

    made = fused(module(program, 2))
    assert stored(made) == 2  # both of softmax
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(SHAPE).astype("float32") for _ in range(2))
    r = rng.standard_normal(ROW).astype("float32")
    a = _softmax(x.astype("float64"))
    late = r.astype("float64")
    for _ in range(80):
        late = np.tanh(late)
    difference = x.astype("float64") - y
    values = np.where(a < 0.05, late, y), np.exp(difference), np.tanh(difference), _softmax(a)
    for got, value in zip(outputs(made, [x, y, r]), values, strict=True):
        np.testing.assert_allclose(got, value.sum((0, 1, 2)), rtol=1e-4, atol=1e-4)


def _softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    powers: np.ndarray[Any, Any] = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
