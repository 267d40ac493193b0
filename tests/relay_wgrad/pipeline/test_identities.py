"""Casts to a wider type and back are dropped, others stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from relay_wgrad.pipeline.round_trips import RoundTrips
from tests.support.built import built
from tests.support.compiled import virtual_machine


def module(first: str, between: str, last: str) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType((3, 5), first))

    def body(emit: object) -> object:
        there = emit(R.astype(x, between))  # type: ignore[operator]
        return emit(R.astype(there, last))  # type: ignore[operator]

    return built([x], body)


def casts(mod: tvm.IRModule) -> int:
    return mod.script().count("R.astype(")


@pytest.mark.parametrize(
    ("types", "left"),
    [
        (("float16", "float32", "float16"), 1),
        (("bfloat16", "float32", "bfloat16"), 1),
        (("float32", "float64", "float32"), 1),
        (("float16", "bfloat16", "float16"), 2),  # digits are lost
        (("float32", "float16", "float32"), 2),
        (("float16", "float32", "bfloat16"), 2),
        (("int32", "float32", "int32"), 2),
    ],
)
def test_what_is_dropped(types: tuple[str, str, str], left: int) -> None:
    mod = module(*types)
    made = RoundTrips()(mod)
    relax.analysis.well_formed(made)
    assert casts(made) == left
    if left == 2:
        assert made.same_as(mod)


def test_values_stay() -> None:
    """With NaN, an infinity and a number below the normal ones."""
    x = np.random.default_rng(0).standard_normal((3, 5)).astype("float16")
    x[0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, 6e-8
    made = RoundTrips()(module("float16", "float32", "float16"))
    got = virtual_machine(made)["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got, x)
