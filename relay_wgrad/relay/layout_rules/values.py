"""A value while layouts change: the nodes that have it so far, by the order of their axes.

An order is a tuple: axis i of the node is axis `order[i]` of the value as the old program has it.
So NCHW in NHWC is (0, 2, 3, 1), and the old order is (0, 1, 2, 3).  An order may be longer than the
value has axes: it then counts with axes of size 1 put in front, as broadcasting does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..ast import Expr, Tuple, TupleGetItem
from ..make import call
from ..types import Dim, TensorType, Type

Order = tuple[int, ...]
T = TypeVar("T")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def old_order(ndim: int) -> Order:
    """The order in which nothing is moved."""
    return tuple(range(ndim))


def arranged(values: Sequence[T], order: Order) -> list[T]:
    """What belongs to each axis, in that order."""
    return [values[axis] for axis in order]


def widened(order: Order, ndim: int) -> Order:
    """The order with axes of size 1 put in front of the node and of the value."""
    extra = ndim - len(order)
    return (*range(extra), *(axis + extra for axis in order))


def without(order: Order, axes: Sequence[int]) -> Order:
    """The order of what is left when the value loses these axes."""
    left = [axis for axis in order if axis not in axes]
    return tuple(sorted(left).index(axis) for axis in left)


@dataclass
class Value:
    """A tensor of the old program.

    `native` is the order in which the new program computes it; `axes` names its axes, in the old
    order, where an operator has.  `make` gives the node of an order, without a change of layout if
    `free`.
    """

    type: TensorType
    native: Order
    forms: dict[Order, Expr]
    axes: str | None = None
    make: Callable[[Order], Expr] | None = None
    free: bool = False

    @property
    def ndim(self) -> int:
        """Of the old program's tensor."""
        return len(self.type.shape)

    @property
    def old(self) -> Order:
        """The old program's order."""
        return old_order(self.ndim)

    @property
    def is_old(self) -> bool:
        """Whether the new program computes it in the old order."""
        return self.native == self.old

    @property
    def order(self) -> Order:
        """The native order if it has no axes put in front, else the old one."""
        return self.native if len(self.native) == self.ndim else self.old

    def get(self, order: Order, axes: str | None = None, reshape: bool = False) -> Expr:
        """The node in that order, made once; `axes` names the value's axes for layout_transform.

        `reshape`: where only axes of size 1 move, that is enough.
        """
        if order not in self.forms:
            if self.make is not None and len(order) == self.ndim:
                self.forms[order] = self.make(order)
            else:
                self.forms[order] = self._changed(order, axes or self.axes, reshape)
        return self.forms[order]

    def cost(self, order: Order) -> int:
        """The changes of layout that an operand of a broadcast in that order needs: 0 or 1."""
        own = self.old if order == old_order(len(order)) else order
        made = self.free and len(own) == self.ndim
        return int(not (own in self.forms or made or self._only_units_move(own)))

    def operand(self, order: Order, axes: str | None) -> Expr:
        """The node that broadcasts to a tensor in that order, which has at least as many axes."""
        if order == old_order(len(order)):
            return self.get(self.old, None, reshape=True)
        if all(size == 1 for size in self.type.shape):
            return self.get(self.order)
        if len(order) > self.ndim and order not in self.forms and self.native == self.old:
            shape = self.sizes(order)
            if self._only_units_move(order) and _trimmed(self.type.shape) == _trimmed(shape):
                return self.get(self.old)
        return self.get(order, axes, reshape=True)

    def sizes(self, order: Order) -> list[Dim]:
        """The shape of the node in that order."""
        wide: list[Dim] = [1] * (len(order) - self.ndim)
        return arranged([*wide, *self.type.shape], order)

    def _only_units_move(self, order: Order) -> bool:
        """Whether the native order and this one differ in axes of size 1 alone."""
        if not all(isinstance(size, int) and size > 0 for size in self.type.shape):
            return False
        return self._moving(self.native) == self._moving(order)

    def _moving(self, order: Order) -> list[int]:
        extra = len(order) - self.ndim
        return [
            axis - extra for axis in order if axis >= extra and self.type.shape[axis - extra] != 1
        ]

    def _changed(self, order: Order, axes: str | None, reshape: bool) -> Expr:
        src, node = self.native, self.get(self.native)
        if (reshape or len(order) < len(src)) and self._only_units_move(order):
            return call("reshape", node, newshape=self.sizes(order))
        ndim = max(len(src), len(order))
        if len(src) < ndim:
            node = call("expand_dims", node, axis=0, num_newaxis=ndim - len(src))
        names, src, dst = _names(axes, self.ndim, ndim), widened(src, ndim), widened(order, ndim)
        if src != dst:
            layouts = ["".join(arranged(names, o)) for o in (src, dst)]
            node = call("layout_transform", node, src_layout=layouts[0], dst_layout=layouts[1])
        if len(order) < ndim:
            node = call("squeeze", node, axis=list(range(ndim - len(order))))
        return node


def _names(axes: str | None, have: int, want: int) -> str:
    """As many letters as axes are wanted, the given ones last."""
    axes = (axes or _LETTERS[:have])[-want:]
    unused = [letter for letter in _LETTERS if letter not in axes]
    return "".join(unused[: want - len(axes)]) + axes


def _trimmed(shape: Sequence[Dim]) -> list[Dim]:
    at = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return list(shape[at:])


@dataclass
class Results:
    """What an operator with several results gives: `whole` has them, each in its native order."""

    whole: Expr
    parts: tuple[Value, ...]  # their forms are empty
    items: dict[int, Value] = field(default_factory=dict)
    old: Expr | None = None  # the tuple of all in the old order, once it is made

    def item(self, index: int) -> Value:
        """One result."""
        if index not in self.items:
            part = self.parts[index]
            forms: dict[Order, Expr] = {part.native: TupleGetItem(self.whole, index)}
            self.items[index] = Value(part.type, part.native, forms, part.axes)
        return self.items[index]

    @property
    def is_old(self) -> bool:
        """Whether all are in the old order."""
        return all(part.is_old for part in self.parts)


@dataclass
class Fields:
    """A tuple that the program writes: `node` in the old one."""

    node: Tuple
    parts: tuple[State, ...]
    old: Expr | None = None  # in the old order, once it is made


@dataclass
class Opaque:
    """What has no layout: a function, or a tuple that is known as a whole alone."""

    node: Expr


State = Value | Results | Fields | Opaque


def as_state(node: Expr, ty: Type | None) -> State:
    """What is in the old order."""
    if not isinstance(ty, TensorType):
        return Opaque(node)
    order = old_order(len(ty.shape))
    return Value(ty, order, {order: node})


def has_known_sizes(value: Value) -> bool:
    """Whether all of its sizes are numbers."""
    return all(isinstance(size, int) for size in value.type.shape)
