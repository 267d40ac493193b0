"""Casts to a wider type and back and sums with zeros are dropped, others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.pipeline.identities import Identities
from relay_wgrad.transform import grad
from tests.support.built import built
from tests.support.compiled import virtual_machine


def module(first: str, between: str, last: str) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType((3, 5), first))

    def body(emit: Any) -> Any:
        return emit(R.astype(emit(R.astype(x, between)), last))

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
    made = Identities()(mod)
    relax.analysis.well_formed(made)
    assert casts(made) == left
    if left == 2:
        assert made.same_as(mod)


def test_values_stay() -> None:
    """With NaN, an infinity and a number below the normal ones."""
    x = np.random.default_rng(0).standard_normal((3, 5)).astype("float16")
    x[0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, 6e-8
    made = Identities()(module("float16", "float32", "float16"))
    got = virtual_machine(made)["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", ["zeros", "zeros_like", "ones", "broadcast", "row of zeros"])
def test_sums_with_zeros(kind: str, first: bool) -> None:
    """They are dropped where nothing is broadcast by them; zeros may be."""
    sizes = {"broadcast": (1, 5)}.get(kind, (3, 5))
    x = relax.Var("x", relax.TensorType(sizes, "float32"))

    def body(emit: Any) -> Any:
        shape = R.shape((1, 5) if kind == "row of zeros" else (3, 5))
        made = {
            "zeros_like": lambda: R.zeros_like(x), "ones": lambda: R.ones(shape, "float32"),
        }.get(kind, lambda: R.zeros(shape, "float32"))()  # fmt: skip
        zeros = emit(made)
        return emit(R.add(zeros, x) if first else R.add(x, zeros))

    mod = built([x], body)
    made = Identities()(mod)
    relax.analysis.well_formed(made)
    assert ("R.add" in made.script()) == (kind in ("ones", "broadcast"))
    value = np.random.default_rng(0).standard_normal(sizes).astype("float32")
    got, want = (virtual_machine(m)["main"](tvm.runtime.tensor(value)).numpy() for m in (made, mod))
    np.testing.assert_array_equal(got, want)


def test_views() -> None:
    """A reshape of a reshape is one, of two equal ones one stays, one to its own sizes goes."""
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))

    def body(emit: Any) -> list[Any]:
        way = [emit(R.reshape(x, R.shape((24,))))]
        for shape in ((2, 12), (3, 8), (4, 6)):
            way.append(emit(R.reshape(way[-1], R.shape(shape))))
        twice = emit(R.reshape(x, R.shape((3, 8))))
        other = emit(R.reshape(emit(R.exp(x)), R.shape((3, 8))))
        return [emit(R.negative(v)) for v in (*way, twice, other)]

    mod = built([x], body)
    made = Identities()(mod)
    relax.analysis.well_formed(made)
    kept = relax.transform.CanonicalizeBindings()(made).script()
    assert kept.count("R.reshape(x, ") == 3
    assert kept.count("R.reshape(") == 4
    value = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
    results = [virtual_machine(m)["main"](tvm.runtime.tensor(value)) for m in (made, mod)]
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.usefixtures("registered")
def test_a_splits_gradient_only_moves() -> None:
    """Of parts of which each has a gradient: on CUDA a join by 16 bytes."""
    x = relax.Var("x", relax.TensorType((2, 8, 8, 32), "float16"))

    def body(emit: Any) -> Any:
        parts = emit(R.split(x, 2, 3))
        one, two = (emit(relax.TupleGetItem(parts, i)) for i in range(2))
        return emit(R.sum(emit(R.astype(emit(R.multiply(R.sin(one), R.cos(two))), "float32"))))

    mod = grad(built([x], body), wrt=["x"])
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm"):
        made = tvm.transform.Sequential(fused_kernels())(mod).script()
    joins = [line for line in made.splitlines() if "concatenate" in line and "R.call_tir" in line]
    assert joins
    assert all("zeros" not in line for line in joins), joins
