"""A pass that drops what changes no value: casts to a wider type and back, and sums with zeros.

Mixed precision puts float32 between two operators of halves, and gradients do the same: what a
residual gets back, half either way, was written once more beside the tensor that it is.  The
gradient of a split's parts is added to zeros before it is joined: each of its elements took an
addition, so the join was no copy of 16 bytes at a time.  A sum with zeros is x but for -0, which
becomes 0.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..dtypes import HALVES
from ..graph.def_use import Graph
from ..graph.rebuild import bound, rebuilt, with_functions
from ..transform.grad_paths import summed_with_zeros

_CAST = "relax.astype"
_WIDER = {**dict.fromkeys(HALVES, ("float32", "float64")), "float32": ("float64",)}
"""Type -> the types that have all of its values."""


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.identities")
class Identities:
    """For operators, before they are legalized."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with another name for what such an operator gives."""
        return with_functions(mod, lambda _, func: _without(func))


def _without(func: relax.Function) -> relax.Function:
    graph = Graph(func)
    same = {}
    for binding in graph.bindings:
        for one in (_cast_back(graph, binding.var), summed_with_zeros(graph, binding.var)):
            if one is not None:
                same[binding.var] = one
    if not same:
        return func
    return rebuilt(
        func,
        lambda block: [bound(b, same[b.var]) if b.var in same else b for b in block.bindings],
    )


def _cast_back(graph: Graph, var: relax.Var) -> relax.Var | None:
    """What a variable is a cast back of."""
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
