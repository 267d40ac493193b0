"""Whether types are the same but for the names of variables: of sizes, and of types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .dims import Dim, SymDim, is_variable, same, substituted, variables
from .types import ANY, FuncType, TensorType, TupleType, Type, TypeCall, TypeVar, below


class Renamed:
    """Which variable of one program stands for which of the other's: a bijection.

    A size's variable may have a new name where it is met first; a type's only where `bind` pairs
    them, or with `free` where it is met first.
    """

    def __init__(self, free: bool = False) -> None:
        self._free = free
        self._forth: dict[Any, Dim] = {}
        self._back: dict[Any, Dim] = {}
        self._types: dict[TypeVar, TypeVar] = {}
        self._types_back: dict[TypeVar, TypeVar] = {}

    def bind(self, a: Sequence[TypeVar], b: Sequence[TypeVar]) -> bool:
        """Pairs type parameters from here on, where they are of one kind each."""
        if [var.kind for var in a] != [var.kind for var in b]:
            return False
        self._types.update(zip(a, b, strict=True))
        self._types_back.update(zip(b, a, strict=True))
        return True

    def same(self, a: Type | None, b: Type | None) -> bool:
        """Whether two types are; a variable that is met for the first time may have a new name."""
        if isinstance(a, TensorType) and isinstance(b, TensorType):
            if a.dtype != b.dtype or len(a.shape) != len(b.shape):
                return False
            return all(map(self._same_dim, a.shape, b.shape))
        if isinstance(a, TypeVar) and isinstance(b, TypeVar):
            if self._free and a not in self._types and b not in self._types_back:
                return self.bind((a,), (b,))
            return self._types.get(a, a) is b and self._types_back.get(b, b) is a
        if type(a) is not type(b):
            return False
        if isinstance(a, FuncType) and isinstance(b, FuncType):
            if a.type_constraints or b.type_constraints:
                return a == b
            if a.type_params or b.type_params:
                return self._same_functions(a, b)
        if isinstance(a, TypeCall) and isinstance(b, TypeCall) and not self.same(a.func, b.func):
            return False
        parts = ((), ()) if a is None or b is None else (below(a), below(b))
        if not any(parts):
            return a is b or isinstance(a, (TupleType, TypeCall)) or a == b
        return self.all_same(*parts)

    def _same_functions(self, a: FuncType, b: FuncType) -> bool:
        outer = self._types, self._types_back
        self._types, self._types_back = dict(outer[0]), dict(outer[1])
        same = self.bind(a.type_params, b.type_params) and self.all_same(below(a), below(b))
        self._types, self._types_back = outer
        return same

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
