"""What a partial training leaves out, beside the training of all parameters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import tvm
from rich.table import Table
from tvm import relax

from ..argument_types import check_type
from ..display import columns
from ..frontend import TrainingGraph
from ..frontend.graph import TRAINING_GRAPH
from ..graph.def_use import Graph
from ..graph.rebuild import without_unused
from ..graph.walk import bindings_of
from ..ir import bytes_of, op_name
from ..ops.call_problem import family_def
from ..training.step import ADJOINT, step_module

_WGRAD, _POOL = "relax.nn.conv2d_backward_weight", "relax.grad.max_pool2d_backward"


@dataclass(frozen=True)
class Part:
    """Of a training: tensors and numbers that are trained, convolutions' gradients by their weights
    and by their data, and what of the forward part is kept for the backward part, in bytes.

    What is kept are results that the backward part reads, each in memory of its own.  In a compiled
    program fusion leaves some of them out; a comparison's operand counts as its result, which is
    made at once, and max pooling's as a byte for each window.
    """

    tensors: int
    numbers: int
    wgrads: int
    dgrads: int
    kept: int


@dataclass(frozen=True)
class LeftOut:
    """`part` is of the graph as it is, `whole` with what `TrainingGraph.partial` left out."""

    part: Part
    whole: Part

    def table(self) -> Table:
        """The two beside each other."""
        table = columns("what is trained", "", "all", "here", "left out", left=1)
        for text, name, unit in (
            ("parameters", "tensors", 1),
            ("numbers in them", "numbers", 1),
            ("convolutions' weight gradients", "wgrads", 1),
            ("convolutions' data gradients", "dgrads", 1),
            ("kept for the backward part, MiB", "kept", 2**20),
        ):
            whole, part = (getattr(side, name) / unit for side in (self.whole, self.part))
            form = "{:,.0f}" if unit == 1 else "{:,.1f}"
            table.add_row(text, *map(form.format, (whole, part, whole - part)))
        return table


def left_out(graph: TrainingGraph) -> LeftOut:
    """Differentiates a graph twice, by what is trained and by all.  Raises as `grad` does, and
    TypeError for what is no graph."""
    check_type("left_out: graph", graph, TrainingGraph, TRAINING_GRAPH)
    names = {*graph.trainable, *graph.frozen}
    whole = replace(graph, trainable=tuple(n for n in graph.params if n in names), frozen=())
    part = _part(graph)
    return LeftOut(part, _part(whole) if graph.frozen else part)


def _part(graph: TrainingGraph) -> Part:
    func = without_unused(step_module(graph)[ADJOINT])
    forward = _convolutions(graph.main)
    both = _convolutions(func)
    wgrads = both[_WGRAD] - forward[_WGRAD]
    sizes = [graph.params[name].size for name in graph.trainable]
    return Part(
        len(sizes), sum(sizes), wgrads, both.total() - forward.total() - wgrads,
        _saved_bytes(func, graph.main),
    )  # fmt: skip


def _convolutions(func: relax.Function) -> Counter[str]:
    values = (b.value for b in bindings_of(func))
    return Counter(op_name(value) for value in values if family_def(value) is not None)


def _saved_bytes(func: relax.Function, main: relax.Function) -> int:
    """The bytes of results of the forward part, `main`, that the backward part of `func` reads."""
    graph, names = Graph(func), [b.var.name for b in bindings_of(main)]
    known = set(names)
    forward = {b.var for b in graph.bindings[: len(names)] if b.var.name in known}
    sizes: dict[Any, int] = {}
    for var in forward:
        for user in graph.users_of(var) if isinstance(var.ty, relax.TensorType) else ():
            if user.var not in forward:
                root = _root(var, graph.value)
                sizes[root] = max(sizes.get(root, 0), _read(user, var))
    return sum(sizes.values())


def _read(binding: Any, var: relax.Var) -> int:
    """What must be kept of a variable, in bytes, for a binding that reads it."""
    call, size = binding.value, bytes_of(var.ty)
    if op_name(call) == _POOL and var.same_as(call.args[1]):
        windows = call.args[0].ty
        return min(size, bytes_of(windows) * 8 // int(tvm.DataType(str(windows.dtype)).bits))
    if isinstance(call, relax.Call) and _is_mask(binding.var):
        return min(size, bytes_of(binding.var.ty))
    return size


def _is_mask(var: Any) -> bool:
    return isinstance(var.ty, relax.TensorType) and str(var.ty.dtype) == "bool"


def _root(var: Any, values: dict[Any, Any]) -> Any:
    """The result of which a variable is a view."""
    while op_name(values.get(var)) in ("relax.reshape", "relax.expand_dims", "relax.squeeze"):
        source = values[var].args[0]
        if source not in values:
            return source
        var = source
    return var
