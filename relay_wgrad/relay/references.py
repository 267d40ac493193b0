"""References: places that hold a value, which programs read and write.

They are read, typed, printed and compared; what computes refuses them by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from .expr_methods import ExprMethods
from .immutable import as_node, immutable
from .spans import Span
from .types import Type

Expr: TypeAlias = Any  # `ast`, which has all of them, is above


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class RefCreate(ExprMethods):
    """`ref(value)`: a new place that holds a value."""

    value: Expr
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", as_node(self.value, "RefCreate: the value"))

    def __repr__(self) -> str:
        return "RefCreate()"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class RefRead(ExprMethods):
    """`ref_read(ref)`: what a place holds."""

    ref: Expr
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ref", as_node(self.ref, "RefRead: the reference"))

    def __repr__(self) -> str:
        return "RefRead()"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class RefWrite(ExprMethods):
    """`ref_write(ref, value)`: the place holds another value from here on; gives `()`."""

    ref: Expr
    value: Expr
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ref", as_node(self.ref, "RefWrite: the reference"))
        object.__setattr__(self, "value", as_node(self.value, "RefWrite: the value"))

    def __repr__(self) -> str:
        return "RefWrite()"
