"""A pass that drops casts to a wider type and back.

Mixed precision puts float32 between two operators of halves, and gradients do the same: what a
residual gets back, half either way, was written once more beside the tensor that it is.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..dtypes import HALVES
from ..graph.def_use import Graph
from ..graph.rebuild import bound, rebuilt, with_functions

_CAST = "relax.astype"
_WIDER = {**dict.fromkeys(HALVES, ("float32", "float64")), "float32": ("float64",)}
"""Type -> the types that have all of its values."""


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.round_trips")
class RoundTrips:
    """For operators, before they are legalized."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with another name for what such a cast gives."""
        return with_functions(mod, lambda _, func: _without(func))


def _without(func: relax.Function) -> relax.Function:
    graph = Graph(func)
    first = {b.var: found for b in graph.bindings if (found := _source(graph, b.var)) is not None}
    if not first:
        return func
    return rebuilt(
        func,
        lambda block: [bound(b, first[b.var]) if b.var in first else b for b in block.bindings],
    )


def _source(graph: Graph, var: relax.Var) -> Any:
    """What a variable is a cast back of, of the same block."""
    back = graph.call(var, _CAST)
    there = graph.call(graph.resolved(back.args[0]), _CAST) if back is not None else None
    if back is None or there is None:
        return None
    source = there.args[0]
    if not isinstance(source, relax.Var) or source.ty.dtype is None:
        return None
    dtype, between = str(source.ty.dtype), str(there.ty.dtype)
    same = dtype == str(back.ty.dtype) and between in _WIDER.get(dtype, ())
    return source if same else None
