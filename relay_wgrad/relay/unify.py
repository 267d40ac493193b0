"""Types that must be one: what is known of both, and what stands for the types that are not."""

from __future__ import annotations

from collections.abc import Sequence

from . import dims
from .types import (
    FuncType,
    IncompleteType,
    RelayRefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    below,
    with_parts,
)


class Unifier:
    """The types that `IncompleteType`s have turned out to stand for."""

    def __init__(self) -> None:
        self._found: dict[IncompleteType, Type] = {}

    def shallow(self, type_: Type) -> Type:
        """The type, or what it stands for; its parts may be incomplete."""
        while isinstance(type_, IncompleteType) and type_ in self._found:
            type_ = self._found[type_]
        return type_

    def resolved(self, type_: Type) -> Type:
        """The type with all that is known of its parts."""
        if not self._found:  # most programs have no unknown types
            return type_
        return with_parts(self.shallow(type_), self.resolved)

    def instance(self, type_: FuncType) -> tuple[FuncType, tuple[Type, ...]]:
        """A function's type with unknown types for its type parameters, and those."""
        if not type_.type_params:
            return type_, ()
        unknown = tuple(IncompleteType(param.kind) for param in type_.type_params)
        return type_.with_params(unknown), unknown

    def unified(self, a: Type, b: Type) -> Type | None:
        """The type of what has both, of sizes by `dims.unified`.  None if they don't agree."""
        a, b = self.shallow(a), self.shallow(b)
        if a == b:
            return a
        if isinstance(a, IncompleteType):
            return self._stands_for(a, b)
        if isinstance(b, IncompleteType):
            return self._stands_for(b, a)
        if isinstance(a, TensorType) and isinstance(b, TensorType):
            if a.dtype != b.dtype or len(a.shape) != len(b.shape):
                return None
            shape = tuple(map(dims.unified, a.shape, b.shape))
            return None if None in shape else TensorType(shape, a.dtype)  # type: ignore[arg-type]
        if isinstance(a, TupleType) and isinstance(b, TupleType):
            fields = self._all(a.fields, b.fields)
            return None if fields is None else TupleType(fields)
        if isinstance(a, FuncType) and isinstance(b, FuncType):
            return self._functions(a, b)
        if isinstance(a, RelayRefType) and isinstance(b, RelayRefType):
            value = self.unified(a.value, b.value)
            return None if value is None else RelayRefType(value)
        if isinstance(a, TypeCall) and isinstance(b, TypeCall) and a.func == b.func:
            args = self._all(a.args, b.args)
            return None if args is None else TypeCall(a.func, args)
        return None

    def _functions(self, a: FuncType, b: FuncType) -> Type | None:
        """One that has type parameters also has each type that these give it."""
        if len(a.type_params) < len(b.type_params):
            a, b = b, a
        if a.type_params:
            more = tuple(IncompleteType(p.kind) for p in a.type_params[len(b.type_params) :])
            a, b = a.with_params((*b.type_params, *more)), b.with_params(b.type_params)
        args, result = self._all(a.arg_types, b.arg_types), self.unified(a.ret_type, b.ret_type)
        return None if args is None or result is None else FuncType(args, result)

    def _all(self, a: Sequence[Type], b: Sequence[Type]) -> tuple[Type, ...] | None:
        if len(a) != len(b):
            return None
        out = tuple(self.unified(x, y) for x, y in zip(a, b, strict=True))
        return None if None in out else out  # type: ignore[return-value]

    def _stands_for(self, unknown: IncompleteType, type_: Type) -> Type | None:
        stack = [type_]
        while stack:
            part = self.shallow(stack.pop())
            if part is unknown:
                return None  # it would hold itself
            stack += below(part)
        self._found[unknown] = type_
        return type_


def is_complete(type_: Type) -> bool:
    """Whether nothing of a type is unknown."""
    if isinstance(type_, TensorType):  # most are
        return True
    return not isinstance(type_, IncompleteType) and all(map(is_complete, below(type_)))


def unified(a: Type, b: Type) -> Type | None:
    """As `Unifier.unified`, of types that are known."""
    return Unifier().unified(a, b)


def agree(a: Type, b: Type) -> bool:
    """Whether two types can be of one value: equal, but for sizes that nobody knows."""
    return unified(a, b) is not None
