"""`dyn` operators with the sizes that are known in attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.transform.dynamic_to_static import dynamic_to_static

X = relay.var("x", shape=(2, 3, 4))
Y = relay.var("y", shape=(4, 6))


def changed(expr: Any) -> relay.Function:
    mod = relay.IRModule.from_expr(relay.Function([X, Y], expr))
    return T.DynamicToStatic()(mod)["main"]


def vector(*values: Any) -> Any:
    """Sizes that are computed from constants."""
    return relay.add(relay.const(values, "int64"), relay.const(0, "int64"))


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "reshape": (lambda: relay.reshape(X, relay.shape_of(Y)), {"newshape": (4, 6)}),
    "tile": (lambda: relay.tile(X, vector(1, 2, 3)), {"reps": (1, 2, 3)}),
    "broadcast_to": (lambda: relay.broadcast_to(X, vector(5, 2, 3, 4)), {"shape": (5, 2, 3, 4)}),
    "topk": (lambda: relay.topk(X, vector(2), ret_type="values"), {"k": 2}),
    "nn.pad": (
        lambda: relay.nn.pad(X, relay.reshape(vector(0, 0, 1, 2, 0, 0), (3, 2))),
        {"pad_width": ((0, 0), (1, 2), (0, 0))},
    ),
}
HAS = "dyn.reshape" in relay.op.list_op_names()


@pytest.mark.skipif(not HAS, reason="the package has no `dyn` operators")
@pytest.mark.parametrize("name", CASES)
def test_known_sizes(name: str) -> None:
    make, wanted = CASES[name]
    body = changed(make()).body
    assert body.op.name == name
    for key, value in wanted.items():
        assert body.attrs[key] == value


@pytest.mark.skipif(not HAS, reason="the package has no `dyn` operators")
def test_unknown_sizes_stay() -> None:
    size = relay.var("n", shape=(2,), dtype="int64")
    mod = relay.IRModule.from_expr(relay.Function([X, size], relay.reshape(X, size)))
    assert T.DynamicToStatic()(mod)["main"].body.op.name == "dyn.reshape"


@pytest.mark.skipif(not HAS, reason="the package has no `dyn` operators")
def test_sizes_of_what_becomes_known() -> None:
    """The second shape is known when the first is."""
    first = relay.reshape(X, relay.shape_of(Y))
    body = changed(relay.reshape(relay.reshape(X, (24,)), relay.shape_of(first))).body
    assert body.attrs["newshape"] == (4, 6)
    assert body.checked_type.shape == (4, 6)


def test_nothing_to_do() -> None:
    mod = T.InferType()(relay.IRModule.from_expr(relay.Function([X], relay.tanh(X))))
    assert dynamic_to_static(mod) is mod


def test_shapes_are_folded() -> None:
    """Of any tensor of known sizes; what the dtype does not hold stays."""
    for dtype, folded in (("int32", True), ("float32", True), ("int8", False)):
        wide = relay.var("w", shape=(200, 3))
        mod = relay.IRModule.from_expr(relay.shape_of(relay.tanh(wide), dtype))
        body = T.FoldConstant()(mod)["main"].body
        assert isinstance(body, relay.Constant) == folded
        if folded:
            np.testing.assert_array_equal(body.data, [200, 3])
    size = T.FoldConstant()(relay.IRModule.from_expr(relay.ndarray_size(Y)))["main"].body
    assert size.data == 24
