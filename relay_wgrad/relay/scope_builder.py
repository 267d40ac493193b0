"""`ScopeBuilder`: chains of `let`, and `if` with scopes of its own, in the order of a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .ast import Expr, If, Let, Var, as_node
from .expr import var as make_var


class _Scope:
    def __init__(self) -> None:
        self.bindings: list[tuple[Var, Expr]] = []
        self.value: Expr | None = None
        self.open_if: tuple[Expr, Expr] | None = None  # an `if` that waits for its else

    def expression(self) -> Expr:
        if self.open_if is not None:
            raise RuntimeError("ScopeBuilder: an if_scope has no else_scope")
        if self.value is None:
            raise RuntimeError("ScopeBuilder: ret is not called in this scope")
        out = self.value
        for var, value in reversed(self.bindings):
            out = Let(var, value, out)
        return out


class ScopeBuilder:
    """Makes nested `let` and `if`.

        sb = relay.ScopeBuilder()
        with sb.if_scope(cond):
            sb.ret(sb.let("t", relay.add(x, y)))
        with sb.else_scope():
            sb.ret(y)
        expr = sb.get()

    Raises RuntimeError for a scope without `ret`, or with two, and for an `if` without its else.
    """

    def __init__(self) -> None:
        self._scopes = [_Scope()]

    def let(self, var: Var | str | tuple[Any, ...], value: Any) -> Var:
        """Binds a value to a variable, or to a new one of a name, or of (name, type)."""
        if isinstance(var, (tuple, list)):
            if len(var) > 2:
                raise ValueError(f"ScopeBuilder.let: expected (name, type), got {var!r}")
            var = make_var(*var)
        elif isinstance(var, str):
            var = make_var(var)
        if not isinstance(var, Var):
            raise TypeError(f"ScopeBuilder.let: expected a variable or a name, got {var!r}")
        self._scopes[-1].bindings.append((var, as_node(value, "ScopeBuilder.let: the value")))
        return var

    @contextmanager
    def if_scope(self, cond: Any) -> Iterator[None]:
        """The scope of what happens if the condition, a bool scalar, holds."""
        condition = as_node(cond, "ScopeBuilder.if_scope: the condition")
        inner = _Scope()
        self._scopes.append(inner)
        try:
            yield
        finally:
            self._scopes.pop()
        self._no_value()
        self._scopes[-1].open_if = (condition, inner.expression())

    @contextmanager
    def else_scope(self) -> Iterator[None]:
        """The scope of what happens otherwise; the `if` is then the value of the scope around."""
        outer = self._scopes[-1]
        if outer.open_if is None:
            raise RuntimeError("ScopeBuilder: else_scope must follow if_scope")
        condition, true = outer.open_if
        inner = _Scope()
        self._scopes.append(inner)
        try:
            yield
        finally:
            self._scopes.pop()
        outer.open_if = None
        outer.value = If(condition, true, inner.expression())

    def ret(self, value: Any) -> None:
        """Sets the scope's value."""
        self._no_value()
        self._scopes[-1].value = as_node(value, "ScopeBuilder.ret: the value")

    def get(self) -> Expr:
        """The expression of all that was put in."""
        return self._scopes[-1].expression()

    def _no_value(self) -> None:
        scope = self._scopes[-1]
        if scope.value is not None or scope.open_if is not None:
            raise RuntimeError("ScopeBuilder: ret is called twice in one scope")
