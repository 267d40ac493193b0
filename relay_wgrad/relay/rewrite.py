"""New programs from old ones: nodes rebuilt over new children, with sharing kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from .adt import Clause, Match, with_vars
from .ast import (
    Call,
    Expr,
    Function,
    If,
    Let,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)


def with_children(node: Expr, new: Mapping[Expr, Expr]) -> Expr:
    """The node over what `new` has for its children; the node itself if they are the same."""
    if all(new[child] is child for child in children(node)):
        return node
    if isinstance(node, Call):
        return replace(node, op=new[node.op], args=tuple(new[a] for a in node.args))
    if isinstance(node, Tuple):
        return replace(node, fields=tuple(new[f] for f in node.fields))
    if isinstance(node, TupleGetItem):
        return replace(node, tuple_value=new[node.tuple_value])
    if isinstance(node, Let):
        return replace(node, var=_var(new, node.var), value=new[node.value], body=new[node.body])
    if isinstance(node, If):
        return replace(
            node,
            cond=new[node.cond],
            true_branch=new[node.true_branch],
            false_branch=new[node.false_branch],
        )
    if isinstance(node, Match):
        clauses = tuple(Clause(with_vars(c.lhs, new), new[c.rhs]) for c in node.clauses)
        return replace(node, data=new[node.data], clauses=clauses)
    if isinstance(node, RefCreate):
        return replace(node, value=new[node.value])
    if isinstance(node, RefRead):
        return replace(node, ref=new[node.ref])
    if isinstance(node, RefWrite):
        return replace(node, ref=new[node.ref], value=new[node.value])
    assert isinstance(node, Function), node
    return replace(node, params=tuple(_var(new, p) for p in node.params), body=new[node.body])


def _var(new: Mapping[Expr, Expr], var: Var) -> Var:
    out = new[var]
    assert isinstance(out, Var), out
    return out


def rewrite(
    root: Expr, change: Callable[[Expr, Expr], Expr], new: dict[Expr, Expr] | None = None
) -> Expr:
    """`root` with each node replaced by `change(old, rebuilt)`, children first.

    `rebuilt` is the node over its new children.  `new` holds what is known from before, and gets
    the rest.
    """
    new = {} if new is None else new
    for node in post_order(root, lambda n: n not in new):
        if node not in new:
            new[node] = change(node, with_children(node, new))
    return new[root]
