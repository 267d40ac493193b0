"""A pass that drops what changes no value: casts to a wider type and back, sums with zeros, views.

Mixed precision puts float32 between two operators of halves, and gradients do the same: what a
residual gets back, half either way, was written once more beside the tensor that it is.  The
gradient of a split's parts is added to zeros before it is joined: each of its elements took an
addition, so the join was no copy of 16 bytes at a time.  A sum with zeros is x but for -0, which
becomes 0.  A reshape of a reshape is one, which moves nothing where two in a kernel are a copy; and
a product's two gradients read one view of a tensor, where each with its own had a kernel that made
the tensor in that form.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..dtypes import HALVES
from ..graph.def_use import Graph
from ..graph.rebuild import bound, normal, rebuilt, with_functions
from ..layout_rules.in_layout import sizes_of
from ..transform.grad_paths import summed_with_zeros

_CAST, _RESHAPE = "relax.astype", "relax.reshape"
_WIDER = {**dict.fromkeys(HALVES, ("float32", "float64")), "float32": ("float64",)}
"""Type -> the types that have all of its values."""


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.identities")
class Identities:
    """For operators, before they are legalized."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with another name for what such an operator gives."""
        return with_functions(mod, lambda _, func: _without(func))


def _without(func: relax.Function) -> relax.Function:
    graph, seen = Graph(func), dict[Any, relax.Var]()
    same: dict[relax.Var, Any] = {}
    for binding in graph.bindings:
        var = binding.var
        for one in (_cast_back(graph, var), summed_with_zeros(graph, var), _view(graph, var, seen)):
            if one is not None:
                same[var] = one
    if not same:
        return func
    return rebuilt(
        func,
        lambda block: [bound(b, same[b.var]) if b.var in same else b for b in block.bindings],
    )


def _view(graph: Graph, var: relax.Var, seen: dict[Any, relax.Var]) -> Any:
    """What a reshape is: its operand, an equal one before it in the block, or, of a reshape, one of
    what that is of."""
    call = graph.call(var, _RESHAPE)
    if call is None or not isinstance(call.args[1], relax.ShapeExpr):
        return None
    source = graph.resolved(call.args[0])
    while (before := graph.call(source, _RESHAPE)) is not None:
        source = graph.resolved(before.args[0])
    if tvm_ffi.structural_equal(source.ty.shape, call.args[1]):
        return source
    sizes = sizes_of(var.ty)
    if sizes is not None and all(isinstance(n, int) for n in sizes):
        first = seen.setdefault((source, tuple(sizes), graph.block[var]), var)
        if not first.same_as(var):
            return first
    return None if source.same_as(call.args[0]) else normal(relax.op.reshape(source, call.args[1]))


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
