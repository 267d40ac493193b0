"""Visitors of a user's own: a method for each kind of node, as Relay's.

    class Swap(relay.ExprMutator):
        def visit_call(self, call):
            call = super().visit_call(call)
            return relay.multiply(*call.args) if call.op == relay.op.get("add") else call

    function = Swap().visit(function)

A node is visited once, and its result is kept in `memo_map`.  What a method calls `self.visit` for
is the method's own affair, so this recurses, as no other part of the package does; `visit` lets
Python's stack grow as deep as the program needs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from .adt import Constructor, Match
from .ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Op,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)
from .rewrite import with_children

_FRAMES = 8  # of Python for each level: visit, the method, one that it overrides, comprehensions
_SPARE = 1000
_USUAL = 1000  # levels that any thread's stack has room for
_BYTES = 8192  # of stack for each level: some of Python's calls go through C, as `map`
_MOST = 2**30
_METHODS = {
    Function: "visit_function",
    Call: "visit_call",
    Let: "visit_let",
    Var: "visit_var",
    GlobalVar: "visit_global_var",
    If: "visit_if",
    Tuple: "visit_tuple",
    TupleGetItem: "visit_tuple_getitem",
    Constant: "visit_constant",
    Op: "visit_op",
    RefCreate: "visit_ref_create",
    RefRead: "visit_ref_read",
    RefWrite: "visit_ref_write",
    Constructor: "visit_constructor",
    Match: "visit_match",
}


class ExprFunctor:
    """A method for each kind of node; those that are not overridden raise NotImplementedError."""

    def __init__(self) -> None:
        self.memo_map: dict[Expr, Any] = {}

    def visit(self, expr: Expr) -> Any:
        """What the node's method gives; each node's is asked for once.

        Raises TypeError for what is no Relay expression.
        """
        # A subclass may have forgotten `super().__init__()`, as in Relay's own tests.
        memo = self.__dict__.setdefault("memo_map", {})
        if "_visiting" in self.__dict__:
            return self._visit(expr, memo)
        if type(expr) not in _METHODS:
            raise TypeError(f"visit: expected a Relay expression, got {expr!r}")
        self._visiting = True
        try:
            return _on_deep_stack(expr, lambda: self._visit(expr, memo))
        finally:
            del self._visiting

    def _visit(self, expr: Expr, memo: dict[Expr, Any]) -> Any:
        if type(expr) not in _METHODS:
            raise TypeError(f"visit: expected a Relay expression, got {expr!r}")
        if expr not in memo:
            memo[expr] = getattr(self, _METHODS[type(expr)])(expr)
        return memo[expr]

    def _default(self, node: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no {_METHODS[type(node)]}")

    def visit_function(self, fn: Function) -> Any:
        """A function, `def` or value."""
        return self._default(fn)

    def visit_call(self, call: Call) -> Any:
        """A call."""
        return self._default(call)

    def visit_let(self, let: Let) -> Any:
        """A `let`."""
        return self._default(let)

    def visit_var(self, var: Var) -> Any:
        """A variable, where it is bound or used."""
        return self._default(var)

    def visit_global_var(self, gvar: GlobalVar) -> Any:
        """A global function's name."""
        return self._default(gvar)

    def visit_if(self, ite: If) -> Any:
        """An `if`."""
        return self._default(ite)

    def visit_tuple(self, tup: Tuple) -> Any:
        """A tuple."""
        return self._default(tup)

    def visit_tuple_getitem(self, item: TupleGetItem) -> Any:
        """A tuple's field."""
        return self._default(item)

    def visit_constant(self, const: Constant) -> Any:
        """A constant."""
        return self._default(const)

    def visit_op(self, op: Op) -> Any:
        """An operator."""
        return self._default(op)

    def visit_ref_create(self, ref: RefCreate) -> Any:
        """`ref(…)`."""
        return self._default(ref)

    def visit_ref_read(self, ref: RefRead) -> Any:
        """`ref_read(…)`."""
        return self._default(ref)

    def visit_ref_write(self, ref: RefWrite) -> Any:
        """`ref_write(…, …)`."""
        return self._default(ref)

    def visit_constructor(self, con: Constructor) -> Any:
        """A constructor of a data type."""
        return self._default(con)

    def visit_match(self, match: Match) -> Any:
        """A `match`; the variables of its patterns are among its children."""
        return self._default(match)


class ExprVisitor(ExprFunctor):
    """Visits every node below; methods give None."""

    def _default(self, node: Any) -> Any:
        for child in children(node):
            self.visit(child)


class ExprMutator(ExprFunctor):
    """Gives a node over its children's results; the node itself where all are the same."""

    def _default(self, node: Any) -> Any:
        below = children(node)
        if not below:
            return node
        new = {child: self.visit(child) for child in below}
        # Operators of one name are equal, and one stands in `memo_map` for all.
        out = with_children(
            node, {child: child if new[child] == child else new[child] for child in below}
        )
        # What the type was inferred from has changed.
        return out if out is node else replace(out, checked_type=None)


def _on_deep_stack(expr: Expr, work: Callable[[], Any]) -> Any:
    """`work()` with Python's limit of recursion, and the stack, as a program of that depth needs.

    Far beyond the usual it runs in a thread of its own, since a thread's stack can be chosen.
    """
    depth: dict[Expr, int] = {}
    for node in post_order(expr):
        depth[node] = 1 + max((depth[child] for child in children(node)), default=0)
    levels = depth[expr]
    limit, size = sys.getrecursionlimit(), threading.stack_size()
    sys.setrecursionlimit(max(limit, _FRAMES * levels + _SPARE))
    try:
        if levels <= _USUAL:
            return work()
        threading.stack_size(min(levels * _BYTES, _MOST))
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, work).result()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)
