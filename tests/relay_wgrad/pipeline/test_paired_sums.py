"""Two sums over the same tensors: which become one kernel, and both results' numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target

from relay_wgrad.ir import op_name
from relay_wgrad.ops.batch_norm_train_backward import batch_norm_train_backward
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from tests.support.compiled import virtual_machine
from tests.support.partition_cases import module

TARGET = Target({"kind": "llvm", "num-cores": 4})
SHAPE = (4, 14, 14, 64)
pytestmark = pytest.mark.usefixtures("registered")
op = relax.op


def passed(emit: Any, g: Any, x: Any) -> Any:
    """As a ReLU's gradient."""
    return emit(op.where(emit(op.greater(x, relax.const(0.25, x.ty.dtype))), g, op.zeros_like(g)))


def sums(axes: list[int], keepdims: bool = False) -> Any:
    """A body: the sum of what is passed, and that of its product with an operand."""

    def body(emit: Any, g: Any, x: Any) -> list[Any]:
        first = emit(op.sum(passed(emit, g, x), axes, keepdims))
        product = emit(op.multiply(passed(emit, g, x), x))
        return [first, emit(op.sum(product, axes, keepdims))]

    return body


def operands(shape: tuple[Any, ...], dtype: str = "float32") -> dict[str, Any]:
    return {"g": (shape, dtype), "x": (shape, dtype)}


def calls(given: dict[str, Any], body: Any) -> list[str]:
    """The names of the kernels that are called."""
    with TARGET:
        mod = tvm.transform.Sequential(fused_kernels())(module(given, body))
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [str(v.args[0].name_hint) for v in values if op_name(v) == "relax.call_tir"]


def computed(mod: tvm.IRModule, values: list[Any], target: Target = TARGET) -> list[Any]:
    vm = virtual_machine(mod, target, cpu_pipeline())
    found = vm["main"](*(tvm.runtime.tensor(value) for value in values))
    return [found.numpy()] if hasattr(found, "numpy") else [t.numpy() for t in found]


def arrays(shape: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(2)]


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        (SHAPE, [0, 1, 2]),
        (SHAPE, [1, 2]),  # of each image
        ((2, 9, 11, 96), [0, 1, 2]),
        ((2, 9, 11, 96), [0]),
        ((3, 7, 5, 1280), [0, 1, 2]),
        ((4, 31, 29, 24), [0, 1, 2]),
        ((4, 31, 29, 37), [0, 1, 2]),  # no vectors
        ((4, 48, 28, 28), [0, 2, 3]),  # channels outside
        ((5, 37, 31, 29), [0, 2, 3]),
        ((3, 6, 12, 12, 20), [0, 2, 3, 4]),
        ((400, 96), [0]),
        ((300, 1000), [1]),
        ((40, 41, 42), [0, 1, 2]),  # a number
    ],
    ids=str,
)
def test_the_numbers(shape: tuple[int, ...], axes: list[int], dtype: str) -> None:
    given = operands(shape, dtype)
    (name,) = calls(given, sums(axes))
    assert name.endswith("_and_sum")
    g, x = arrays(shape, dtype)
    got = computed(module(given, sums(axes)), [g, x])
    passing = np.where(x > 0.25, g, 0).astype("float64")
    limit = {"float32": 1e-6, "float64": 1e-14}[dtype]
    for each, terms in zip(got, (passing, passing * x), strict=True):
        apart = np.linalg.norm(each - terms.sum(tuple(axes)))
        assert apart <= limit * np.linalg.norm(np.abs(terms).sum(tuple(axes)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "shape", [SHAPE, (4, 31, 29, 24), (3, 7, 5, 1280), (4, 31, 29, 37)], ids=str
)
def test_of_halves(shape: tuple[int, ...], dtype: str) -> None:
    """Which a mixed-precision step converts, and adds up in float32."""

    def body(emit: Any, g: Any, x: Any) -> list[Any]:
        wide = (emit(op.astype(each, "float32")) for each in (g, x))
        return sums([0, 1, 2])(emit, *wide)  # type: ignore[no-any-return]

    (name,) = calls(operands(shape, dtype), body)
    assert name.endswith("_and_sum")
    values = [x.astype(getattr(ml_dtypes, dtype, dtype)) for x in arrays(shape)]
    got = computed(module(operands(shape, dtype), body), values)
    g, x = (each.astype("float64") for each in values)
    passing = np.where(x > 0.25, g, 0)
    for each, terms in zip(got, (passing, passing * x), strict=True):
        apart = np.linalg.norm(each - terms.sum((0, 1, 2)))
        assert apart <= 1e-6 * np.linalg.norm(np.abs(terms).sum((0, 1, 2)))


def test_the_number_of_cores_changes_no_bit() -> None:
    mod, values = module(operands(SHAPE), sums([0, 1, 2])), arrays(SHAPE)
    found = [computed(mod, values, Target({"kind": "llvm", "num-cores": n})) for n in (1, 4, 64)]
    for other in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], other, strict=True))


def test_what_is_not_a_number_stays_one() -> None:
    g, x = arrays(SHAPE)
    x[...] = np.abs(x) + 1
    g[2, 3, 4, 5] = np.nan
    for each in computed(module(operands(SHAPE), sums([0, 1, 2])), [g, x]):
        assert np.argwhere(np.isnan(each)).tolist() == [[5]]


def _of_the_other(emit: Any, g: Any, x: Any) -> list[Any]:
    first = emit(op.sum(g, [0, 1, 2]))
    return [first, emit(op.sum(emit(op.multiply(g, emit(op.subtract(x, first)))), [0, 1, 2]))]


def _over_others(emit: Any, g: Any, x: Any) -> list[Any]:
    return [emit(op.sum(g, [0, 1, 2])), emit(op.sum(emit(op.multiply(g, x)), [1, 2]))]


def _in_another_order(emit: Any, g: Any, x: Any) -> list[Any]:
    """Both have 14 results, of different axes."""
    return [emit(op.sum(g, [0, 2, 3])), emit(op.sum(emit(op.multiply(g, x)), [0, 1, 3]))]


def _of_a_part(emit: Any, g: Any, x: Any) -> list[Any]:
    part = emit(op.strided_slice(g, [0], [0], [2]))
    return [emit(op.sum(g, [0, 1, 2])), emit(op.sum(part, [0, 1, 2]))]


def _of_nothing_shared(emit: Any, g: Any, x: Any) -> list[Any]:
    return [emit(op.sum(g, [0, 1, 2])), emit(op.sum(x, [0, 1, 2]))]


def _maxima(emit: Any, g: Any, x: Any) -> list[Any]:
    return [emit(op.max(g, [0, 1, 2])), emit(op.max(emit(op.multiply(g, x)), [0, 1, 2]))]


@pytest.mark.parametrize(
    "body",
    [_of_the_other, _over_others, _in_another_order, _of_a_part, _of_nothing_shared, _maxima],
)
def test_others_stay_apart(body: Any) -> None:
    assert not [name for name in calls(operands(SHAPE), body) if name.endswith("_and_sum")]


def test_a_sum_that_reads_the_other_reads_all_of_it() -> None:
    g, x = arrays(SHAPE)
    first, second = computed(module(operands(SHAPE), _of_the_other), [g, x])
    total = g.astype("float64").sum((0, 1, 2))
    np.testing.assert_allclose(first, total, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second, (g * (x - total)).sum((0, 1, 2)), rtol=1e-4, atol=1e-2)


def test_small_ones_stay_apart() -> None:
    assert len(calls(operands((2, 4, 4, 64)), sums([0, 1, 2]))) == 2


def test_sizes_of_the_run_stay_apart() -> None:
    n = tirx.Var("n", "int64")
    shape = (n, 14, 14, 64)
    assert len(calls(operands(shape), sums([0, 1, 2]))) == 2
    g, x = arrays((3, 14, 14, 64))
    got = computed(module(operands(shape), sums([0, 1, 2])), [g, x])
    passing = np.where(x > 0.25, g, 0).astype("float64")
    for each, terms in zip(got, (passing, passing * x), strict=True):
        np.testing.assert_allclose(each, terms.sum((0, 1, 2)), rtol=1e-4, atol=1e-3)


def test_three_are_a_pair_and_one() -> None:
    def body(emit: Any, g: Any, x: Any) -> list[Any]:
        square = emit(op.multiply(x, x))
        return [
            *sums([0, 1, 2])(emit, g, x),
            emit(op.sum(emit(op.multiply(square, g)), [0, 1, 2])),
        ]

    assert len(calls(operands(SHAPE), body)) == 2
    g, x = arrays(SHAPE)
    got = computed(module(operands(SHAPE), body), [g, x])
    passing = np.where(x > 0.25, g, 0).astype("float64")
    wide = x.astype("float64")
    for each, terms in zip(got, (passing, passing * wide, wide * wide * g), strict=True):
        assert np.linalg.norm(each - terms.sum((0, 1, 2))) <= 1e-6 * np.linalg.norm(
            np.abs(terms).sum((0, 1, 2))
        )


@pytest.mark.parametrize("residual", [False, True])
def test_a_normalizations_gradient(residual: bool) -> None:
    """Its two sums and its data gradient; what comes through a residual is made once, and copied
    by no cast to its own dtype."""
    vector = ((64,), "float32")
    given = {**operands(SHAPE), **dict.fromkeys(("gamma", "beta", "mean", "rstd"), vector)}
    given |= {"y": (SHAPE, "float32")} if residual else {}

    def body(emit: Any, *args: Any) -> list[Any]:
        made = emit(batch_norm_train_backward(*args, axis=3, activation="relu"))
        return [emit(relax.TupleGetItem(made, i)) for i in range(3 + residual)]

    found = calls(given, body)
    assert len([name for name in found if name.endswith("_and_sum")]) == 1
    assert len(found) == 2 + residual
