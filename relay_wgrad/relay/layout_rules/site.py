"""One call of the old program, as the rules for layouts see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..ast import Call, Expr, Op, Tuple
from ..make import call
from ..records import lookup
from ..types import TensorType, TupleType, Type
from .values import Fields, Opaque, Order, Results, State, Value, old_order


def original(state: State) -> Expr:
    """The node in the old program's layout."""
    if isinstance(state, Value):
        return state.get(state.old)
    if isinstance(state, Opaque):
        return state.node
    if state.old is None:
        state.old = _as_tuple(state)
    return state.old


def _as_tuple(state: Results | Fields) -> Expr:
    if isinstance(state, Fields):
        fields = tuple(map(original, state.parts))
        same = all(a is b for a, b in zip(fields, state.node.fields, strict=True))
        return state.node if same else replace(state.node, fields=fields)
    if state.is_old:
        return state.whole
    items = [state.item(i) for i in range(len(state.parts))]
    return Tuple(tuple(item.get(item.old) for item in items))


def with_args(node: Call, args: Sequence[Expr]) -> Call:
    """The call over new arguments; the same node if they are."""
    if all(a is b for a, b in zip(args, node.args, strict=True)):
        return node
    return replace(node, args=tuple(args))


@dataclass
class Site:
    """A call of an operator.

    `args` is what its arguments became; `wanted`: whether a conversion that the user asked for may
    want the result.
    """

    call: Call
    args: Sequence[State]
    type: Type
    wanted: bool

    @property
    def name(self) -> str:
        """The operator's."""
        assert isinstance(self.call.op, Op)
        return self.call.op.name

    @cached_property
    def attrs(self) -> Mapping[str, Any]:
        """All attributes."""
        return lookup(self.name).read(self.call.attrs)

    def value(self, index: int = 0) -> Value:
        """An argument that is a tensor."""
        state = self.args[index]
        assert isinstance(state, Value), state
        return state

    def tensors(self, index: int = 0) -> list[Value] | None:
        """The fields of an argument that is a tuple; None if it is known as a whole alone."""
        state = self.args[index]
        if isinstance(state, Results):
            return [state.item(i) for i in range(len(state.parts))]
        if isinstance(state, Fields) and all(isinstance(p, Value) for p in state.parts):
            return [part for part in state.parts if isinstance(part, Value)]
        return None

    def axis(self, axis: int, order: Order) -> int:
        """Where an axis of the old program is in that order."""
        return order.index(axis % len(order))

    def place(self, axis: int, order: Order) -> int:
        """Where the axis is; one counted from the end that stays there is left so."""
        at = self.axis(axis, order)
        return axis if axis % len(order) == at else at

    def chosen(self, values: Sequence[Value], ndim: int) -> tuple[Order, str | None]:
        """The order, of as many axes, in which the values need the fewest changes; and its axes.

        A tie goes to a new order if a conversion may want the result, else to the old one.
        """
        found: dict[Order, str | None] = {old_order(ndim): None}
        for value in values:
            if len(value.native) == ndim and not found.get(value.native):
                found[value.native] = value.axes
        ranked = list(found.items())
        if self.wanted:
            ranked.append(ranked.pop(0))
        order, axes = min(ranked, key=lambda item: sum(v.cost(item[0]) for v in values))
        axes = axes or next((v.axes for v in values if v.axes and v.ndim == ndim), None)
        return order, axes

    def changed_call(self, args: Sequence[Expr], **changes: Any) -> Call:
        """The call with other arguments and attributes."""
        if all(self.attrs[name] == value for name, value in changes.items()):
            return with_args(self.call, args)
        out = call(self.name, *args, **{**self.attrs, **changes})
        return replace(out, span=self.call.span)

    def result(self, node: Expr, order: Order, axes: str | None) -> Value:
        """The call's only result, which a node has in that order."""
        assert isinstance(self.type, TensorType)
        return Value(self.type, order, {order: node}, axes)

    def results(self, node: Expr, orders: Sequence[tuple[Order, str | None]]) -> Results:
        """The call's results, which a node has in these orders."""
        assert isinstance(self.type, TupleType)
        parts = []
        for ty, (order, axes) in zip(self.type.fields, orders, strict=True):
            assert isinstance(ty, TensorType)
            parts.append(Value(ty, order, {}, axes))
        return Results(node, tuple(parts))
