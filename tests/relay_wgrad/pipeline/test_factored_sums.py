"""Sums of one product times something small are made of one sum; others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from relay_wgrad.pipeline.factored_sums import FactoredSums
from tests.support.built import built
from tests.support.compiled import virtual_machine

X = (3, 4, 5, 6)
SHAPES = {"a": X, "b": X, "n": (3, 1, 1, 6), "g": (6,), "r": (3, 4, 5, 1)}
Program = Callable[..., list[Any]]


def module(program: Program, dtype: str = "float64") -> tvm.IRModule:
    given = [relax.Var(n, relax.TensorType(s, dtype)) for n, s in SHAPES.items()]
    return built(given, lambda emit: program(emit, *given))


def times(emit: Any, *factors: Any) -> Any:
    made = factors[0]
    for factor in factors[1:]:
        made = emit(R.multiply(made, factor))
    return made


def response_norm(emit: Any, a: Any, b: Any, n: Any, g: Any, r: Any) -> list[Any]:
    """Its gradients by its scale and by each channel's norm."""
    first = emit(R.collapse_sum_to(times(emit, a, times(emit, b, n)), R.shape((1, 1, 1, 6))))
    second = emit(R.collapse_sum_to(times(emit, times(emit, a, g), b), R.shape((3, 1, 1, 6))))
    return [first, second]


def ways_to_sum(emit: Any, a: Any, b: Any, n: Any, g: Any, r: Any) -> list[Any]:
    """Axes kept and dropped, all axes, and the product itself."""
    return [
        emit(R.sum(times(emit, a, b), [1, 2])),
        emit(R.sum(times(emit, n, a, b), [2, 1], keepdims=True)),
        emit(R.sum(times(emit, a, n, b), [0, 1, -2])),
        emit(R.collapse_sum_to(times(emit, g, a, b, n), R.shape((6,)))),
        emit(R.sum(times(emit, a, b, n, R.const(2.0, "float64")))),
    ]


def of_rows(emit: Any, a: Any, b: Any, n: Any, g: Any, r: Any) -> list[Any]:
    """Layer normalization's: along the channels, and over all that is no channel."""
    first = emit(R.sum(times(emit, a, b, r), [3], keepdims=True))
    return [first, emit(R.sum(times(emit, a, b), [3]))]


def alone(emit: Any, a: Any, b: Any, n: Any, g: Any, r: Any) -> list[Any]:
    return [emit(R.sum(times(emit, a, b, n), [1, 2]))]


def of_others(emit: Any, a: Any, b: Any, n: Any, g: Any, r: Any) -> list[Any]:
    """Other products, and other axes."""
    first = emit(R.sum(times(emit, a, a, n), [1, 2]))
    return [first, emit(R.sum(times(emit, a, b, n), [1, 2])), emit(R.sum(times(emit, a, b), [2]))]


@pytest.mark.parametrize(
    ("program", "sums"),
    [(response_norm, 1), (ways_to_sum, 1), (of_rows, 1), (alone, 1), (of_others, 3)],
)  # fmt: skip
def test_how_many_large_sums(program: Program, sums: int) -> None:
    mod = module(program)
    made = FactoredSums()(mod)
    relax.analysis.well_formed(made)
    assert large_sums(made) == sums
    if program in (alone, of_others):
        assert made.same_as(mod)
    rng = np.random.default_rng(0)
    values = [tvm.runtime.tensor(rng.standard_normal(s)) for s in SHAPES.values()]
    for got, want in zip(*(virtual_machine(m)["main"](*values) for m in (made, mod)), strict=True):
        if isinstance(got, tvm.runtime.Tensor):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12, atol=1e-12)


def large_sums(mod: tvm.IRModule) -> int:
    return sum(
        str(b.value.op.name) in ("relax.sum", "relax.collapse_sum_to")
        and [int(n) for n in b.value.args[0].ty.shape.values] == list(X)
        for block in mod["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call)
    )


def test_halves_stay() -> None:
    """Their sums would be rounded elsewhere."""
    mod = module(response_norm, "float16")
    assert FactoredSums()(mod).same_as(mod)


def test_what_is_not_finite_stays() -> None:
    made = FactoredSums()(module(response_norm))
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(s) for s in SHAPES.values()]
    values[0][1, 2, 3, 4] = np.nan
    first, second = virtual_machine(made)["main"](*map(tvm.runtime.tensor, values))
    assert np.isnan(first.numpy()).nonzero()[3].tolist() == [4]
    assert [i.tolist() for i in np.isnan(second.numpy()).nonzero()] == [[1], [0], [0], [4]]
