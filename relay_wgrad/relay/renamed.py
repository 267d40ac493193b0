"""Whether types are the same but for the names of variables in their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .dims import Dim, SymDim, is_variable, same, substituted, variables
from .types import ANY, FuncType, TensorType, TupleType, Type


class Renamed:
    """Which variable of one program's sizes stands for which of the other's: a bijection."""

    def __init__(self) -> None:
        self._forth: dict[Any, Dim] = {}
        self._back: dict[Any, Dim] = {}

    def same(self, a: Type | None, b: Type | None) -> bool:
        """Whether two types are; a variable that is met for the first time may have a new name."""
        if isinstance(a, TensorType) and isinstance(b, TensorType):
            if a.dtype != b.dtype or len(a.shape) != len(b.shape):
                return False
            return all(map(self._same_dim, a.shape, b.shape))
        if isinstance(a, TupleType) and isinstance(b, TupleType):
            return self.all_same(a.fields, b.fields)
        if isinstance(a, FuncType) and isinstance(b, FuncType):
            return self.all_same((*a.arg_types, a.ret_type), (*b.arg_types, b.ret_type))
        return a is None and b is None

    def all_same(self, a: Sequence[Type | None], b: Sequence[Type | None]) -> bool:
        """Whether two lists of types are."""
        return len(a) == len(b) and all(map(self.same, a, b))

    def _same_dim(self, a: Dim, b: Dim) -> bool:
        if not isinstance(a, SymDim) or not isinstance(b, SymDim):
            return same(a, b) or (a is ANY and b is ANY)
        if is_variable(a) and is_variable(b):
            if a.expr not in self._forth and b.expr not in self._back:
                self._forth[a.expr], self._back[b.expr] = b, a
            return a.expr in self._forth and self._forth[a.expr] == b
        # A variable that stands nowhere alone keeps its name.
        return all(v in self._forth or v not in self._back for v in variables(a)) and same(
            substituted(a, self._forth), b
        )
