"""Sums over a stack's axis become sums of its branches; one that is read otherwise stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.ir import op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.transform import grad
from relay_wgrad.transform.unstacked import unstacked
from tests.support.built import built
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")

Emit = Callable[[Any], Any]
SIZES = (3, 4, 5)  # of a branch


def stack(emit: Emit, parts: list[Any], axis: int) -> Any:
    shape = [*SIZES[:axis], 1, *SIZES[axis:]]
    return emit(R.concat([emit(R.reshape(part, R.shape(shape))) for part in parts], axis))


def outer(emit: Emit, whole: Any, axis: int, count: int) -> Any:
    """An axis of a tensor as branches' and their own."""
    return emit(R.reshape(whole, R.shape([*SIZES[:axis], count, *SIZES[axis:]])))


def selective(emit: Emit, parts: list[Any], weight: Any, axis: int) -> Any:
    """A selective kernel: sums of branches, weights of them, and branches by these."""
    branches = stack(emit, parts, axis)
    gap = emit(R.sum(branches, [axis]))
    weighed = emit(R.multiply(branches, emit(R.nn.softmax(weight, axis))))
    return emit(R.multiply(emit(R.sum(weighed, [axis])), gap))


class Drawn:
    """A program at random: a stack or a split axis, up to four steps, and reductions of it."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.axis, self.count = int(rng.integers(0, 3)), int(rng.integers(2, 5))
        self.joined = bool(rng.integers(2))
        size = [*SIZES[: self.axis], self.count, *SIZES[self.axis :]]
        self.shapes = {f"b{i}": SIZES for i in range(self.count)} if self.joined else {
            "whole": tuple(n * (self.count if i == self.axis else 1) for i, n in enumerate(SIZES))
        }  # fmt: skip
        self.steps: list[tuple[str, bool]] = []
        for i in range(int(rng.integers(0, 5))):
            name = str(rng.choice(["add", "multiply", "subtract", "tanh", "nn.relu", "sigmoid"]))
            self.steps.append((name, bool(rng.integers(2))))
            # Numbers for all, for some axes, or of fewer axes.
            own = [n if rng.integers(2) else 1 for n in size][int(rng.integers(0, 3)) :]
            self.shapes[f"w{i}"] = tuple(own)
        over = [i for i in range(4) if i == self.axis or rng.random() < 0.3]
        self.over = [a - 4 if rng.integers(2) else a for a in over]
        self.mean, self.keep = bool(rng.integers(2)), bool(rng.integers(2))

    def module(self) -> tvm.IRModule:
        params = {n: relax.Var(n, relax.TensorType(s, "float64")) for n, s in self.shapes.items()}

        def body(emit: Emit) -> list[Any]:
            if self.joined:
                x = stack(emit, [params[f"b{i}"] for i in range(self.count)], self.axis)
            else:
                x = outer(emit, params["whole"], self.axis, self.count)
            for i, (name, first) in enumerate(self.steps):
                op: Any = relax.op.nn.relu if name == "nn.relu" else getattr(relax.op, name)
                both = [x, params[f"w{i}"]] if first else [params[f"w{i}"], x]
                x = emit(op(*both)) if name in ("add", "multiply", "subtract") else emit(op(x))
            reduce = R.mean if self.mean else R.sum
            y = emit(reduce(x, self.over, self.keep))
            return [emit(R.sum(emit(R.sin(y)))), y]

        return built(list(params.values()), body)

    def values(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape) for shape in self.shapes.values()]


def called(mod: tvm.IRModule, name: str, values: list[np.ndarray]) -> list[np.ndarray]:
    out = virtual_machine(mod)[name](*map(tvm.runtime.tensor, values))
    return [leaf.numpy() for leaf in leaves(out)]


def leaves(out: Any) -> list[Any]:
    return [out] if hasattr(out, "numpy") else [leaf for part in out for leaf in leaves(part)]


@pytest.mark.parametrize("seed", range(12))
def test_programs_at_random(seed: int) -> None:
    """Values and all gradients, in float64, of the program as it was."""
    drawn = Drawn(seed)
    mod = drawn.module()
    made = unstacked(mod, "main")
    relax.analysis.well_formed(made)
    assert not made.same_as(mod)
    shape = [*SIZES[: drawn.axis], drawn.count, *SIZES[drawn.axis :]]
    assert not any(sizes_of(b.var.ty) == shape for b in bindings_of(made["main"])), "a whole stack"
    before, after = (called(grad(m), "main_adjoint", drawn.values()) for m in (mod, made))
    for want, got in zip(before, after, strict=True):
        assert want.shape == got.shape
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)


def selective_module(axis: int = 1, also: str = "") -> tvm.IRModule:
    parts = [relax.Var(n, relax.TensorType(SIZES, "float64")) for n in "ab"]
    shape = [1, 1, 1, 1]
    shape[axis] = 2
    weight = relax.Var("w", relax.TensorType(shape, "float64"))

    def body(emit: Emit) -> Any:
        y = selective(emit, parts, weight, axis)
        if not also:
            return y
        branches = stack(emit, parts, axis)
        extra = {
            "returned": lambda: branches,
            "another axis": lambda: emit(R.sum(branches, [0 if axis else 1])),
            "moved": lambda: emit(R.permute_dims(branches)),
        }[also]()
        return [y, emit(R.sum(branches, [axis])), extra]

    return built([*parts, weight], body)


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_a_selective_kernel(axis: int) -> None:
    mod = selective_module(axis)
    made = unstacked(mod, "main")
    assert "R.concat" not in made.script()
    rng = np.random.default_rng(0)
    values = [rng.standard_normal([int(n) for n in p.ty.shape.values]) for p in mod["main"].params]
    (got,), (want,) = (called(m, "main", values) for m in (made, mod))
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("also", ["returned", "another axis", "moved"])
def test_a_stack_that_something_else_reads_stays(also: str) -> None:
    made = unstacked(selective_module(also=also), "main")
    assert made.script().count("R.concat") == 1


def test_a_stack_that_is_kept_stays() -> None:
    mod = selective_module()
    names = [b.var.name for b in bindings_of(mod["main"]) if op_name(b.value) == "relax.concat"]
    assert unstacked(mod, "main", names).script().count("R.concat") == 1


def test_nothing_to_do() -> None:
    x = relax.Var("x", relax.TensorType((2, 32, 4), "float32"))
    mod = built([x], lambda emit: emit(R.sum(emit(R.multiply(x, x)), [1])))
    assert unstacked(mod, "main").same_as(mod)
