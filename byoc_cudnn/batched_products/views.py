"""Views of tensors in a function: which axes of which other tensor one has, by strides."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.ir import op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.layout_rules.table import PERMUTE, RESHAPES, permute_axes

from .strides import Axis, permuted, repeated, reshaped, whole

BROADCAST, SPLIT = "relax.broadcast_to", "relax.split"


def origins(
    view: Graph, arg: Any, user: relax.Var, gone: Collection[relax.Var] = ()
) -> Iterator[tuple[list[Axis] | None, int, Any]]:
    """The tensors that an operand is a view of, itself first: the operand's axes in each, None
    where strides cannot say them, and where it begins.

    user : what reads it; gone : what is not to be there any more.
    """
    steps, at = list[Step](), arg
    while True:
        sizes = sizes_of(at.ty)
        axes, first = whole(sizes) if sizes is not None else None, 0
        for step in reversed(steps):
            first += step.first(axes) if axes else 0
            axes = axes and step.axes(axes)
        yield axes, first, at
        made = _made_of(view, at)
        if made is None or made[1] in gone or not _in_scope(view, made[1], user):
            return
        steps.append(made[0])
        at = made[1]


@dataclass(frozen=True)
class Step:
    """What makes a view of a tensor: a call, and of a cut where the part begins along its axis."""

    call: relax.Call
    sizes: list[Any]
    begin: int | None = None

    @property
    def _axis(self) -> int:
        return int(self.call.attrs.axis) % len(self.sizes)

    def first(self, axes: Sequence[Axis]) -> int:
        """Where the view begins, in elements; `axes` are the tensor's."""
        return self.begin * axes[self._axis][1] if self.begin else 0

    def axes(self, axes: Sequence[Axis]) -> list[Axis] | None:
        """What it makes of a tensor's axes."""
        if self.begin is not None:
            cut = (self.sizes[self._axis], axes[self._axis][1])
            return [*axes[: self._axis], cut, *axes[self._axis + 1 :]]
        if op_name(self.call) == PERMUTE:
            return permuted(axes, permute_axes(self.call))
        same = repeated if op_name(self.call) == BROADCAST else reshaped
        return same(axes, self.sizes)


def _made_of(view: Graph, var: Any) -> tuple[Step, Any] | None:
    """The step that makes a variable, and of what; None where it is no view."""
    sizes, begin = sizes_of(var.ty), None
    call = view.call(var, PERMUTE, BROADCAST, *RESHAPES)
    value: Any = view.value.get(var) if isinstance(var, relax.Var) else None
    if isinstance(value, relax.TupleGetItem):
        call = view.call(view.resolved(value.tuple_value), SPLIT)
        begin = None if call is None else _begin(call, int(value.index))
        call = None if begin is None else call
    if call is None or sizes is None:
        return None
    return Step(call, sizes, begin), view.resolved(call.args[0])


def _begin(call: relax.Call, part: int) -> int | None:
    """Where a part of a cut begins along its axis; None where that is not known."""
    ends, before = call.attrs.indices_or_sections, list[Any]()
    if not isinstance(ends, (int, tirx.IntImm)):
        return int(ends[part - 1]) if part else 0
    for ty in list(call.ty.fields)[:part]:
        sizes = sizes_of(ty)
        before.append(None if sizes is None else sizes[int(call.attrs.axis)])
    return sum(before) if all(isinstance(size, int) for size in before) else None


def _in_scope(view: Graph, expr: Any, user: relax.Var) -> bool:
    """Whether a variable may be used where another is bound."""
    known = isinstance(expr, relax.Var) and sizes_of(expr.ty) is not None
    return known and (expr in view.params or view.block.get(expr) == view.block[user])


def undone(axes: Sequence[Axis], step: relax.Call, sizes: Any) -> list[Axis] | None:
    """What the axes of a call's result are of its operand, of these sizes."""
    if op_name(step) == PERMUTE:
        order = permute_axes(step)
        return permuted(axes, [order.index(axis) for axis in range(len(order))])
    return reshaped(axes, sizes) if sizes is not None else None
