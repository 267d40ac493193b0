"""What passes share that write expressions anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax


def substitute(expr: Any, value: Mapping[relax.Var, Any]) -> Any:
    """`expr` with each variable replaced by its `value`, where it has one; types come anew."""
    if isinstance(expr, relax.Var):
        return value.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substitute(field, value) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, value), expr.index)
    if isinstance(expr, relax.Call):
        args = [substitute(arg, value) for arg in expr.args]
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
    return expr


def rewritten(mod: tvm.IRModule, rewriter: relax.PyExprMutator) -> tvm.IRModule:
    """The module of a mutator with each of its Relax functions visited."""
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return rewriter.builder_.get()
