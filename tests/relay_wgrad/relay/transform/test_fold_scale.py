"""Factors of channels in weights: no number changes, and the products are gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.testing import count_ops
from tests.support.relay.evaluate import evaluate
from tests.support.relay.scale_programs import program
from tests.support.relay.unchanged import flat

PASSES = {
    "forward": T.ForwardFoldScaleAxis,
    "backward": T.BackwardFoldScaleAxis,
    "both": lambda: T.Sequential([T.BackwardFoldScaleAxis(), T.ForwardFoldScaleAxis()]),
}


def arrays(mod: relay.IRModule) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {p.name: rng.normal(size=p.type_annotation.shape) for p in mod["main"].params}


@pytest.mark.parametrize("name", PASSES)
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_no_number_changes(name: str, seed: int) -> None:
    """`scale_programs.program(seed)` is what failed."""
    mod = program(seed)
    with T.PassContext(opt_level=3):
        folded = PASSES[name]()(mod)
    assert folded["main"].checked_type == mod["main"].checked_type
    inputs = arrays(mod)
    want, got = (flat(evaluate(m["main"], inputs)) for m in (mod, folded))
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max())


@pytest.mark.parametrize("name", PASSES)
def test_many_programs_change(name: str) -> None:
    changed = 0
    for seed in range(60):
        mod = program(seed)
        with T.PassContext(opt_level=3):
            changed += not relay.structural_equal(PASSES[name]()(mod), mod)
    assert changed >= 12


def body(text_or: Any, change: T.Pass) -> Any:
    mod = T.InferType()(relay.IRModule.from_expr(text_or))
    with T.PassContext(opt_level=3):
        return change(mod)["main"].body


X = relay.var("x", shape=(2, 4, 8, 8))
W = relay.var("w", shape=(6, 4, 3, 3))
B = relay.var("b", shape=(6, 1, 1))
DEEP = relay.var("deep", shape=(8, 1, 3, 3))


def const(*numbers: float) -> relay.Constant:
    return relay.const(np.array(numbers, "float32").reshape(-1, 1, 1))


def products(node: Any) -> int:
    return count_ops(relay.Function([], node))["multiply"]


@pytest.mark.parametrize("factor", [const(1, 2, 3, 4), const(1, -2, 0, 4), relay.const(2.0)])
def test_forward_the_weight_has_the_factor(factor: relay.Constant) -> None:
    got = body(relay.nn.conv2d(relay.multiply(X, factor), W), T.ForwardFoldScaleAxis())
    assert got.args[0].name == "x"
    assert got.args[1].op.name == "multiply"


@pytest.mark.parametrize("factor", [const(1, -2, 3, 4), const(0, 2, 3, 4), X])
def test_forward_relu_stops_what_is_not_positive(factor: Any) -> None:
    before = relay.nn.conv2d(relay.nn.relu(relay.multiply(X, factor)), W)
    assert body(before, T.ForwardFoldScaleAxis()).args[0].op.name == "nn.relu"
    assert products(body(before, T.ForwardFoldScaleAxis())) == 1


@pytest.mark.parametrize("numbers", [(0, 1, 1, 1), (1e-20, 1, 1, 1)])
def test_forward_a_sum_stops_what_it_cannot_be_divided_by(numbers: Any) -> None:
    """Relay divides by it: 0 · (x + b / 0)."""
    bias = relay.var("b", shape=(4, 1, 1))
    before = relay.nn.conv2d(relay.add(relay.multiply(X, const(*numbers)), bias), W)
    got = body(before, T.ForwardFoldScaleAxis())
    assert count_ops(relay.Function([], got)).get("divide", 0) == 0


def test_backward_both_branches_of_a_sum_ask() -> None:
    """A negative factor passes one convolution, but not the other's relu; Relay forgets that."""
    left = relay.nn.conv2d(X, W)
    right = relay.nn.relu(relay.nn.conv2d(X, W))
    before = relay.multiply(relay.add(left, right), const(-1, 2, 3, 4, 5, 6))
    assert body(before, T.BackwardFoldScaleAxis()).op.name == "multiply"


def test_backward_a_shared_convolution_stays() -> None:
    conv = relay.nn.conv2d(X, W)
    before = relay.Tuple([relay.multiply(conv, const(1, 2, 3, 4, 5, 6)), conv])
    assert body(before, T.BackwardFoldScaleAxis()).fields[0].op.name == "multiply"


def test_backward_groups() -> None:
    """The weight has all output channels, however many groups there are."""
    weight = relay.var("w", shape=(6, 2, 3, 3))
    before = relay.nn.conv2d(X, weight, groups=2)
    before = relay.multiply(relay.add(before, B), const(1, -2, 3, 4, 5, 6))
    got = body(before, T.BackwardFoldScaleAxis())
    assert got.op.name == "add"
    assert got.args[0].args[1].op.name == "multiply"


def test_forward_a_depth_multiplier_stays() -> None:
    before = relay.nn.conv2d(relay.multiply(X, const(1, 2, 3, 4)), DEEP, groups=4)
    assert body(before, T.ForwardFoldScaleAxis()).args[0].op.name == "multiply"


def test_integers_stay() -> None:
    x, w = (
        relay.var(n, shape=s, dtype="int8") for n, s in (("x", (1, 4, 5, 5)), ("w", (4, 4, 3, 3)))
    )
    factor = relay.const(np.full((4, 1, 1), 3, "int8"))
    before = relay.nn.conv2d(relay.multiply(x, factor), w, out_dtype="int32")
    assert body(before, T.ForwardFoldScaleAxis()).args[0].op.name == "multiply"


def test_all_of_it_folds_constants() -> None:
    weight = relay.const(np.ones((6, 4, 3, 3), "float32"))
    before = relay.multiply(relay.nn.conv2d(X, weight), const(1, 2, 3, 4, 5, 6))
    got = body(before, T.FoldScaleAxis())
    assert isinstance(got.args[1], relay.Constant)
    np.testing.assert_array_equal(got.args[1].data[:, 0, 0, 0], [1, 2, 3, 4, 5, 6])
