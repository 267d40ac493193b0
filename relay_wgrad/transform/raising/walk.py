"""Walks over a function's bodies, those of branches included: what `transform` goes by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax


def branches_of(value: relax.Expr) -> list[relax.SeqExpr]:
    """Those of an `If`; none of anything else."""
    return [value.true_branch, value.false_branch] if isinstance(value, relax.If) else []


def bodies_of(body: relax.SeqExpr) -> list[relax.SeqExpr]:
    """A function's body and those of the branches in it."""
    found, rest = [], [body]
    while rest:
        body = rest.pop()
        found.append(body)
        for block in body.blocks:
            if not isinstance(block, relax.DataflowBlock):  # no branch can stand in one
                rest += [b for binding in block.bindings for b in branches_of(binding.value)]
    return found


def variables_of(expr: relax.Expr) -> list[relax.Var]:
    """The variables that an expression uses, each as often as it does; of a branch its condition.

    Branches are bodies of their own.
    """
    found: list[relax.Var] = []
    rest = [expr]
    while rest:
        item = rest.pop()
        if isinstance(item, relax.Var):
            found.append(item)
        elif isinstance(item, relax.Call):
            rest.append(item.op)
            rest.extend(item.args)
        elif isinstance(item, relax.Tuple):
            rest.extend(item.fields)
        elif isinstance(item, relax.TupleGetItem):
            rest.append(item.tuple_value)
        elif isinstance(item, relax.If):
            rest.append(item.cond)
        elif isinstance(item, relax.Function):
            found += relax.analysis.free_vars(item)
    return found


def with_type(expr: relax.Expr, ty: Any) -> Any:
    """The expression with a type that is known."""
    relax.expr._update_type(expr, ty)
    return expr


def rebuilt(func: relax.Function, bindings: Callable[[Any], list[relax.Binding]]) -> relax.Function:
    """The function with new bindings in its blocks, those of its branches included."""

    def body_of(body: relax.SeqExpr) -> relax.SeqExpr:
        blocks = []
        for block in body.blocks:
            new = bindings(block)
            if isinstance(block, relax.DataflowBlock):
                blocks.append(relax.DataflowBlock(new, block.span))
            else:
                blocks.append(relax.BindingBlock([branched(b) for b in new], block.span))
        return with_type(relax.SeqExpr(blocks, body.body, body.span), body.ty)

    def branched(binding: relax.Binding) -> relax.Binding:
        value = binding.value
        if not isinstance(value, relax.If):
            return binding
        branches = [body_of(branch) for branch in branches_of(value)]
        new = with_type(relax.If(value.cond, *branches, value.span), value.ty)
        return relax.VarBinding(binding.var, new, binding.span)

    return relax.Function(
        list(func.params), body_of(func.body), func.ret_ty, func.is_pure, func.attrs, func.span
    )
