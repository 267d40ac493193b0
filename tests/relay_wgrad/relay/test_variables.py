"""Type variables of expressions and of types: all, those that something binds, and the others."""

from __future__ import annotations

import pytest

from relay_wgrad import relay
from relay_wgrad.relay import analysis


def test_type_variables() -> None:
    a, b, c = (relay.TypeVar(name) for name in "abc")
    x, y = relay.Var("x", a), relay.Var("y", relay.FuncType([b], c, [b]))
    function = relay.Function([x, y], x, a, type_params=[a])
    assert list(analysis.all_type_vars(function)) == [a, b, c]
    assert list(analysis.bound_type_vars(function)) == [b, a]
    assert list(analysis.free_type_vars(function)) == [c]
    assert list(analysis.free_type_vars(relay.FuncType([a, b], c, [a]))) == [b, c]
    assert list(analysis.bound_type_vars(relay.TupleType([a, relay.TensorType((2,))]))) == []
    assert list(analysis.all_type_vars(relay.TupleType([a, relay.TensorType((2,))]))) == [a]


@pytest.mark.parametrize("ask", ["all_type_vars", "bound_type_vars", "free_type_vars"])
def test_none(ask: str) -> None:
    x = relay.var("x", shape=(2, 3))
    assert list(getattr(analysis, ask)(relay.Function([x], relay.nn.relu(x)))) == []
