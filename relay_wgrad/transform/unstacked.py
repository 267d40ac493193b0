"""Branches side by side along an axis that is summed over in the end are added instead.

Selective kernels and split attention have the branches of a block as one tensor, weigh each by
numbers of its own and sum over that axis; so do averages of several outputs.  As one tensor they
are joined, read whole for each sum, and cut up again in the gradient; as tensors of their own they
are added where they are read, and each has its gradient.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm
from tvm import relax

from ..graph.def_use import Graph
from ..graph.rebuild import Writer, with_bindings
from ..graph.walk import bindings_of, dataflow_block
from ..ir import op_name
from ..layout_rules.in_layout import sizes_of

_CONCAT, _RESHAPE, _SUM, _MEAN = "relax.concat", "relax.reshape", "relax.sum", "relax.mean"
_ELEMENTWISE = frozenset({
    "relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.maximum",
    "relax.minimum", "relax.negative", "relax.exp", "relax.sigmoid", "relax.tanh",
    "relax.nn.relu", "relax.nn.silu", "relax.nn.gelu",
})  # fmt: skip
_MOST = 8  # branches


def unstacked(mod: tvm.IRModule, fn: str, keep: Collection[str] = ()) -> tvm.IRModule:
    """The module with sums of branches in `fn`, of one dataflow block, in the place of sums over a
    stack's axis.

    Values differ by the order of additions.  A stack that something else reads stays whole, and so
    does one whose variable has a name of `keep`.
    """
    func = mod[fn]
    if dataflow_block(func) is None:
        return mod
    graph = Graph(func)
    stacks = {var: axis for var, axis in _stacks(graph).items() if var.name not in keep}
    axes = _summed_alone(graph, stacks)
    if not axes:
        return mod
    out = mod.clone()
    out[fn] = _Rewriter(graph, axes).function()
    return out


def _stacks(graph: Graph) -> dict[relax.Var, int]:
    """Variables that are branches side by side, and along which axis."""
    found: dict[relax.Var, int] = {}
    for binding in graph.bindings:
        axis = _axis_of(graph, binding, found)
        if axis is not None and isinstance(binding.var, relax.DataflowVar):
            found[binding.var] = axis
    return found


def _axis_of(graph: Graph, binding: Any, found: dict[relax.Var, int]) -> int | None:
    value, sizes = binding.value, _known(binding.var)
    if sizes is None:
        return None
    name = op_name(value)
    if name == _CONCAT and isinstance(value.args[0], relax.Tuple):
        axis = int(value.attrs.axis) % len(sizes)
        parts = [_known(part) for part in value.args[0].fields]
        stacked = all(part is not None and part[axis] == 1 for part in parts)
        return axis if stacked and 1 < len(parts) <= _MOST else None
    if name == _RESHAPE:
        return _split_axis(_known(value.args[0]), sizes)
    if name not in _ELEMENTWISE:
        return None
    of = {found[arg] for arg in value.args if arg in found}
    ranks = {arg.ty.ndim for arg in value.args if arg in found}
    # All operands are seen through the result's axes, so a stack among them has as many.
    return of.pop() if len(of) == 1 and ranks == {len(sizes)} else None


def _split_axis(given: list[int] | None, sizes: list[int]) -> int | None:
    """The axis of a reshape's result that is the outer part of one axis of its operand."""
    if given is None or len(given) + 1 != len(sizes):
        return None
    for i, n in enumerate(sizes[:-1]):
        if 1 < n <= _MOST and sizes[:i] == given[:i] and sizes[i + 2 :] == given[i + 1 :]:
            return i if n * sizes[i + 1] == given[i] and sizes[i + 1] > 1 else None
    return None


def _known(var: Any) -> list[int] | None:
    """A tensor's sizes where all are numbers."""
    sizes = sizes_of(var.ty)
    return sizes if sizes and all(isinstance(n, int) for n in sizes) else None


def _summed_alone(graph: Graph, axes: dict[relax.Var, int]) -> dict[relax.Var, int]:
    """Those of which nothing but stacks among these and sums over their axis read anything."""
    left = dict(axes)
    while True:
        bad = [
            var for var, axis in left.items()
            if not graph.users_of(var)
            or not all(user.var in left or _sums(user.value, axis) for user in graph.users_of(var))
            or any(arg in axes and arg not in left for arg in _operands(graph.value[var]))
        ]  # fmt: skip
        if not bad:
            return left
        for var in bad:
            del left[var]


def _operands(value: Any) -> list[Any]:
    return list(value.args) if op_name(value) in _ELEMENTWISE else []


def _sums(value: Any, axis: int) -> bool:
    """Whether a value is a sum or a mean over this axis, and perhaps others."""
    if op_name(value) not in (_SUM, _MEAN) or value.attrs.axis is None:
        return False
    return axis in {int(a) % value.args[0].ty.ndim for a in value.attrs.axis}


class _Rewriter:
    def __init__(self, graph: Graph, axes: dict[relax.Var, int]) -> None:
        self.graph, self.axes = graph, axes
        self.writer = Writer(dataflow_block(graph.func))
        self.parts: dict[relax.Var, list[relax.Var]] = {}  # without their axis
        self.cut: dict[tuple[Any, int], list[relax.Var]] = {}

    def function(self) -> relax.Function:
        for binding in bindings_of(self.graph.func):
            var, value = binding.var, binding.value
            source = value.args[0] if op_name(value) in (_SUM, _MEAN) else None
            if var in self.axes:
                self.parts[var] = self._of(var, value, self.axes[var])
            elif source in self.parts:
                self.writer.bind(var, self._added(var, value, source), binding.span)
            else:
                self.writer.keep(binding, {})
        return with_bindings(self.graph.func, self.writer.bindings)

    def _of(self, var: relax.Var, value: Any, axis: int) -> list[relax.Var]:
        """The branches of a stack."""
        if op_name(value) == _CONCAT:
            return [self._without(part, axis) for part in value.args[0].fields]
        count = int(var.ty.shape.values[axis])
        if op_name(value) == _RESHAPE:
            return self._cut(value.args[0], axis, count)
        ndim = var.ty.ndim
        operands = [self._seen(arg, axis, count, ndim) for arg in value.args]
        calls = [
            relax.Call(value.op, args, value.attrs, value.ty_args)
            for args in zip(*operands, strict=True)
        ]
        return [self.writer.emit(var.name, call) for call in calls]

    def _seen(self, arg: Any, axis: int, count: int, ndim: int) -> list[Any]:
        """An operand of each branch's call, of one that may be broadcast to `ndim` axes."""
        if arg in self.parts:
            return self.parts[arg]
        at = axis - (ndim - arg.ty.ndim)
        if at < 0:
            return [arg] * count
        if int(arg.ty.shape.values[at]) == 1:
            return [self._without(arg, at)] * count
        return [self._without(part, at) for part in self._cut(arg, at, count)]

    def _cut(self, whole: Any, axis: int, count: int) -> list[relax.Var]:
        """Equal pieces of a tensor along an axis."""
        key = (whole, axis)
        if key not in self.cut:
            pieces = self.writer.emit("branches", relax.op.split(whole, count, axis))
            fields = [relax.TupleGetItem(pieces, i) for i in range(count)]
            self.cut[key] = [self.writer.emit("branch", field) for field in fields]
        return self.cut[key]

    def _without(self, part: Any, axis: int) -> relax.Var:
        """A tensor without an axis of size 1: what it was a reshape of, where that is it."""
        sizes = list(part.ty.shape.values)
        left = sizes[:axis] + sizes[axis + 1 :]
        made = self.graph.call(part, _RESHAPE)
        if made is not None and _known(made.args[0]) == list(map(int, left)):
            return made.args[0]
        return self.writer.emit("branch", relax.op.reshape(part, left))

    def _added(self, var: relax.Var, value: Any, source: relax.Var) -> relax.Expr:
        """A sum or mean over the stack's axis, and perhaps others."""
        axis, ndim = self.axes[source], source.ty.ndim
        total, *others = self.parts[source]
        for other in others:
            total = self.writer.emit(var.name, relax.op.add(total, other))
        if op_name(value) == _MEAN:
            share = relax.const(1 / (len(others) + 1), str(var.ty.dtype))
            total = self.writer.emit(var.name, relax.op.multiply(total, share))
        over = sorted({int(a) % ndim for a in value.attrs.axis} - {axis})
        reduced: Any = total
        if over:
            make = relax.op.sum if op_name(value) == _SUM else relax.op.mean
            reduced = make(total, [a - (a > axis) for a in over])
        if value.attrs.keepdims:
            whole = self.writer.emit(var.name, reduced) if over else reduced
            reduced = relax.op.reshape(whole, list(var.ty.shape.values))
        return reduced
