"""`dataflow`: a Relax function as boxes and edges, for pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import Op

from ..graph.walk import bindings_of, result_of
from ..ops import FAMILY
from ..relation import as_size
from ..transform.layout.report import CHANGES

KINDS: dict[str, str] = {
    "convolution": "conv2d, conv2d_transpose, conv2d_backward_weight, conv2d_backward_data",
    "layout change": "permute_dims, layout_transform",
    "reshape": "ops that only copy or rename elements: reshape, tile, concat, slices, …",
    "parameter": "the function's parameters",
    "result": "what the function returns",
    "other": "every other op, and calls of functions",
}
"""Kind of a box -> what is in it."""

_RESHAPES = {
    f"relax.{name}"
    for name in (
        "reshape", "tile", "concat", "split", "strided_slice", "dynamic_strided_slice", "flatten",
        "expand_dims", "squeeze", "stack", "repeat", "broadcast_to", "take",
    )
}  # fmt: skip
_CALLS = ("relax.call_tir", "relax.call_tir_inplace", "relax.call_dps_packed",
          "relax.call_pure_packed")  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One box: `name` is its variable's, `kind` a key of `KINDS`, `label` the lines within."""

    name: str
    kind: str
    label: tuple[str, ...]


@dataclass(frozen=True)
class Dataflow:
    """Boxes in program order, and who feeds whom as pairs of indices into them."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]


def dataflow(function: relax.Function) -> Dataflow:
    """The boxes and edges of a function.

    Renamings, tuples and their fields are looked through; constants and shapes are left out.  A
    conditional is one box.  Raises TypeError for what is no Relax function.
    """
    if not isinstance(function, relax.Function):
        raise TypeError(f"draw: needs a Relax function, got {type(function).__name__}")
    return _Reader().read(function)


class _Reader:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: dict[tuple[int, int], None] = {}  # ordered, each once
        self.made: dict[Any, int] = {}  # variable -> its box
        self.same: dict[Any, Any] = {}  # variable -> the renamed value, the tuple or the field

    def read(self, function: relax.Function) -> Dataflow:
        for param in function.params:
            self.made[param] = self._box(param.name, "parameter", (param.name, _shape(param.ty)))
        for binding in bindings_of(function, branches=False):
            self._bind(binding)
        for source, name in self._results(result_of(function.body)):
            self.edges[source, self._box(name, "result", (name, "result"))] = None
        return Dataflow(tuple(self.nodes), tuple(self.edges))

    def _box(self, name: str, kind: str, label: tuple[str, ...]) -> int:
        self.nodes.append(Node(name, kind, tuple(line for line in label if line)))
        return len(self.nodes) - 1

    def _bind(self, binding: Any) -> None:
        value = binding.value
        if isinstance(value, (relax.Call, relax.If)):
            kind, title, layout = _described(value)
            box = self._box(binding.var.name, kind, (title, layout, _shape(binding.var.ty)))
            for source in self._sources(value):
                self.edges[source, box] = None
            self.made[binding.var] = box
        else:
            self.same[binding.var] = value

    def _sources(self, expr: Any) -> Iterator[int]:
        """The boxes that an expression takes its values from, in order."""
        expr = self._seen_through(expr)
        if isinstance(expr, relax.Var):
            if expr in self.made:
                yield self.made[expr]
        elif isinstance(expr, relax.Tuple):
            for item in expr.fields:
                yield from self._sources(item)
        elif isinstance(expr, relax.TupleGetItem):
            yield from self._sources(expr.tuple_value)
        elif isinstance(expr, relax.Call):
            for arg in expr.args:
                yield from self._sources(arg)
        elif isinstance(expr, relax.If):
            for var in relax.analysis.free_vars(expr):
                yield from self._sources(var)

    def _seen_through(self, expr: Any) -> Any:
        """The expression behind renamings, and behind fields of tuples that are at hand."""
        while True:
            if isinstance(expr, relax.Var) and expr in self.same:
                expr = self.same[expr]
            elif isinstance(expr, relax.TupleGetItem):
                whole = self._seen_through(expr.tuple_value)
                if not isinstance(whole, relax.Tuple):
                    return expr
                expr = whole.fields[expr.index]
            else:
                return expr

    def _results(self, expr: Any) -> list[tuple[int, str]]:
        """(box, name) of each tensor that leaves the function; the name is its variable's."""
        through = self._seen_through(expr)
        if isinstance(through, relax.Tuple):
            return [found for item in through.fields for found in self._results(item)]
        name = expr.name if isinstance(expr, relax.Var) else ""
        return [(box, name or self.nodes[box].name) for box in self._sources(through)][:1]


def _described(value: Any) -> tuple[str, str, str]:
    """(kind, op with what tells it from others, layouts) of a call or a conditional."""
    if isinstance(value, relax.If):
        return "other", "if", ""
    op = value.op
    if not isinstance(op, Op):
        return "other", str(getattr(op, "name_hint", None) or getattr(op, "name", "call")), ""
    name, attrs = str(op.name), value.attrs
    short = name.removeprefix("relax.").removeprefix("nn.").removeprefix("grad.")
    if name in FAMILY:
        return "convolution", short + _sizes(attrs), _conv_layouts(attrs)
    if name in CHANGES:
        axes = getattr(attrs, "axes", None)
        return "layout change", short, f"axes {' '.join(map(str, axes))}" if axes else ""
    if name in _CALLS:
        callee = value.args[0]
        short = str(getattr(callee, "name_hint", None) or getattr(callee, "global_symbol", short))
        return "other", short, ""
    layout = str(getattr(attrs, "layout", None) or "")
    return ("reshape" if name in _RESHAPES else "other"), short, layout


def _sizes(attrs: Any) -> str:
    """What is not the default of a convolution's strides, dilation and groups."""
    out = ""
    for key, letter in (("strides", "s"), ("dilation", "d")):
        values = [str(v) for v in getattr(attrs, key, None) or ()]
        if any(v != "1" for v in values):
            out += f" {letter}{'×'.join(values if len(set(values)) > 1 else values[:1])}"
    groups = str(getattr(attrs, "groups", None) or 1)
    return out + (f" groups {groups}" if groups != "1" else "")


def _conv_layouts(attrs: Any) -> str:
    """`NHWC OHWI`, and the layout of the output or of its gradient where it is another."""
    keys = ("data_layout", "kernel_layout", "grad_layout", "out_layout")
    data, kernel, grad, out = (str(getattr(attrs, key, None) or "") for key in keys)
    out = grad or out
    return f"{data} {kernel}" + (f" {out}" if out not in ("", data) else "")


def _shape(ty: Any) -> str:
    if isinstance(ty, relax.TupleType):
        return f"{len(ty.fields)} tensors"
    if not isinstance(ty, relax.TensorType):
        return ""
    if not isinstance(ty.shape, relax.ShapeExpr):
        return f"{ty.ndim} axes" if ty.ndim >= 0 else "?"
    return "×".join(str(as_size(size)) for size in ty.shape.values) or "scalar"
