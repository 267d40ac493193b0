"""The variables of an expression, and its nodes in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .ast import Expr, Function, Var, bound_here, post_order
from .expr_methods import ExprMethods
from .type_functor import TypeVisitor
from .types import FuncType, Type, TypeVar


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


def all_type_vars(of: Expr | Type) -> list[TypeVar]:
    """The type variables in a type, or in the types that an expression states, in their order."""
    return _type_vars(of)[0]


def bound_type_vars(of: Expr | Type) -> list[TypeVar]:
    """Those that functions and their types are written for."""
    return _type_vars(of)[1]


def free_type_vars(of: Expr | Type) -> list[TypeVar]:
    """Those that nothing binds."""
    every, bound = _type_vars(of)
    return [var for var in every if var not in bound]


class _Found(TypeVisitor):
    """Type variables as they come, and those that are parameters of function types."""

    def __init__(self) -> None:
        super().__init__()
        self.every: dict[TypeVar, None] = {}
        self.bound: dict[TypeVar, None] = {}

    def visit_type_var(self, tv: TypeVar) -> None:
        self.every[tv] = None

    def visit_func_type(self, ftt: FuncType) -> None:
        self.bind(ftt.type_params)
        for part in (*ftt.arg_types, ftt.ret_type):
            self.visit(part)

    def bind(self, params: Iterable[TypeVar]) -> None:
        for var in params:
            self.every[var] = self.bound[var] = None


def _type_vars(of: Expr | Type) -> tuple[list[TypeVar], list[TypeVar]]:
    found = _Found()
    if isinstance(of, ExprMethods):
        for node in post_order(of):
            if isinstance(node, Function):
                found.bind(node.type_params)
            stated = getattr(node, "type_annotation", None) or getattr(node, "ret_type", None)
            for ty in (stated, *getattr(node, "type_args", ())):
                if ty is not None:
                    found.visit(ty)
    else:
        found.visit(of)
    return list(found.every), list(found.bound)


def post_order_visit(expr: Expr, fvisit: Callable[[Expr], object]) -> None:
    """Calls `fvisit` with each node once, after its children."""
    for node in post_order(expr):
        fvisit(node)


def _bound(expr: Expr) -> set[Var]:
    bound: set[Var] = set()
    for node in post_order(expr):
        bound.update(bound_here(node))
    return bound
