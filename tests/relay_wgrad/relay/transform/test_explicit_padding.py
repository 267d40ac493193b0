"""`nn.pad` in an operator's own padding: no number changes, and it is gone where it may be."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.testing import count_ops
from tests.support.relay.evaluate import evaluate

LEAST = float(np.finfo("float64").min)


def case(seed: int) -> relay.IRModule:
    """A padded tensor and what takes it."""
    pick = random.Random(seed)
    layout = pick.choice(["NCHW", "NHWC"])
    sizes = {"N": 2, "C": 3, "H": 7, "W": 6}
    x = relay.var("x", shape=[sizes[axis] for axis in layout], dtype="float64")
    width = {axis: (pick.randint(0, 2), pick.randint(0, 2)) for axis in "HW"}
    if pick.random() < 0.1:
        width["C"] = (1, 0)
    value = pick.choice([0.0, 0.0, LEAST, LEAST, 1.0])
    mode = pick.choice(["constant"] * 5 + ["edge"])
    pad = relay.nn.pad(
        x, [width.get(axis, (0, 0)) for axis in layout], relay.const(value, "float64"), mode
    )
    own = tuple(pick.randint(0, 1) for _ in range(4))
    kind = pick.choice(["conv", "max", "average", "average"])
    if kind == "conv":
        channels = 3 + sum(width.get("C", (0, 0)))
        kernel = {"NCHW": "OIHW", "NHWC": "HWIO"}[layout]
        shape = {"O": 4, "I": channels, "H": 3, "W": 3}
        w = relay.var("w", shape=[shape[axis] for axis in kernel], dtype="float64")
        body = relay.nn.conv2d(
            pad, w, padding=own, data_layout=layout, kernel_layout=kernel, channels=4,
            kernel_size=(3, 3),
        )  # fmt: skip
    else:
        options: dict[str, Any] = {"pool_size": (3, 3), "padding": own, "layout": layout}
        if kind == "average":
            options["count_include_pad"] = pick.random() < 0.5
            options["padding"] = pick.choice([own, (0, 0)])
        body = {"max": relay.nn.max_pool2d, "average": relay.nn.avg_pool2d}[kind](pad, **options)
    return T.InferType()(relay.IRModule.from_expr(body))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_no_number_changes(seed: int) -> None:
    """`case(seed)` is what failed."""
    mod = case(seed)
    out = T.FoldExplicitPadding()(mod)
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.normal(size=p.type_annotation.shape) for p in mod["main"].params}
    want, got = evaluate(_padded(mod), inputs), evaluate(_padded(out), inputs)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def _padded(mod: relay.IRModule) -> relay.Function:
    """With a number that no window gives in place of the least, which sums would overflow."""

    def small(node: Any) -> Any:
        return relay.const(-1e9, "float64") if node.data == LEAST else node

    class Change(relay.ExprMutator):
        def visit_constant(self, const: Any) -> Any:
            return small(const)

    out = Change().visit(mod["main"])
    assert isinstance(out, relay.Function)
    return out


def test_most_are_gone() -> None:
    gone = sum(
        "nn.pad" not in count_ops(T.FoldExplicitPadding()(case(s))["main"]) for s in range(60)
    )
    assert 15 <= gone < 60


@pytest.mark.parametrize("name", ["conv1d", "avg_pool1d", "max_pool1d"])
def test_of_one_dimension(name: str) -> None:
    x, w = relay.var("x", shape=(1, 3, 9)), relay.var("w", shape=(4, 3, 3))
    value = float(np.finfo("float32").min) if name == "max_pool1d" else 0.0
    pad = relay.nn.pad(x, [(0, 0), (0, 0), (1, 2)], relay.const(value))
    builder = getattr(relay.nn, name)
    body = builder(pad, w) if name == "conv1d" else builder(pad, 3)
    mod = T.InferType()(relay.IRModule.from_expr(body))
    out = T.FoldExplicitPadding()(mod)["main"].body
    assert (out.args[0].name, tuple(out.attrs["padding"])) == ("x", (1, 2))


def test_windows_within_the_padding() -> None:
    """They give the least number, as `nn.pad` does: also what is built."""
    x = relay.var("x", shape=(1, 1, 3, 3))
    pad = relay.nn.pad(x, [(0, 0), (0, 0), (3, 0), (0, 0)], relay.const(np.finfo("float32").min))
    mod = T.InferType()(relay.IRModule.from_expr(relay.nn.max_pool2d(pad, (2, 2))))
    out = T.FoldExplicitPadding()(mod)
    assert "nn.pad" not in count_ops(out["main"])
    data = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
    got, want = (
        relay.create_executor("graph", m, target="llvm").evaluate()(data).numpy()
        for m in (out, mod)
    )
    np.testing.assert_array_equal(got, want)
