"""The variables of an expression, and its nodes in order."""

from __future__ import annotations

from collections.abc import Callable

from .ast import Expr, Var, bound_here, post_order


def all_vars(expr: Expr) -> list[Var]:
    """The variables below an expression, bound or free, in the order of their first use."""
    return [node for node in post_order(expr) if isinstance(node, Var)]


def bound_vars(expr: Expr) -> list[Var]:
    """The variables that functions, `let`s and patterns below the expression bind."""
    bound = _bound(expr)
    return [var for var in all_vars(expr) if var in bound]


def free_vars(expr: Expr) -> list[Var]:
    """The variables that nothing below the expression binds, in the order of their first use."""
    bound = _bound(expr)
    return [var for var in all_vars(expr) if var not in bound]


def post_order_visit(expr: Expr, fvisit: Callable[[Expr], object]) -> None:
    """Calls `fvisit` with each node once, after its children."""
    for node in post_order(expr):
        fvisit(node)


def _bound(expr: Expr) -> set[Var]:
    bound: set[Var] = set()
    for node in post_order(expr):
        bound.update(bound_here(node))
    return bound
