"""Algebraic data types: definitions, constructors, `match`; Relay's module of that name.

They are read, typed, printed and compared; what computes (`relay.build`, most passes) refuses them
by name.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .expr_methods import ExprMethods
from .immutable import as_node, immutable
from .spans import Span
from .types import FuncType, GlobalTypeVar, Type, TypeCall, TypeVar

Expr: TypeAlias = Any  # `ast`, which has all of them, is above

_TAG_BITS = 24  # of a constructor's tag for its type; the rest counts its siblings


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Constructor(ExprMethods):
    """`Cons`: makes a value of a defined type.  Equal by name and type, as operators are."""

    name_hint: str
    inputs: tuple[Type, ...]
    belong_to: GlobalTypeVar
    span: Span | None = None
    checked_type: Type | None = None
    tag: int = -1  # set by the type's definition: Relay's number of the constructor

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        if not isinstance(self.belong_to, GlobalTypeVar):
            raise TypeError(
                f"Constructor {self.name_hint}: belong_to must be a GlobalTypeVar,"
                f" got {self.belong_to!r}"
            )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Constructor)
            and self.name_hint == other.name_hint
            and self.belong_to == other.belong_to
        )

    def __hash__(self) -> int:
        return hash((Constructor, self.name_hint, self.belong_to))

    def __repr__(self) -> str:
        return f"Constructor({self.name_hint})"


@dataclass(frozen=True, eq=False)
class TypeData:
    """`type List[A] { Cons(A, List[A]), Nil }`: what a module holds under a GlobalTypeVar."""

    header: GlobalTypeVar
    type_vars: tuple[TypeVar, ...]
    constructors: tuple[Constructor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "type_vars", tuple(self.type_vars))
        object.__setattr__(self, "constructors", tuple(self.constructors))
        first = zlib.crc32(self.header.name_hint.encode()) % 2 ** (_TAG_BITS - 1) + 1
        for index, constructor in enumerate(self.constructors):
            if constructor.belong_to != self.header:
                raise ValueError(
                    f"TypeData {self.header}: {constructor.name_hint} belongs to"
                    f" {constructor.belong_to}"
                )
            object.__setattr__(constructor, "tag", (first << 8) + index)

    def __str__(self) -> str:
        return type_data_text(self)

    def type_of(self, constructor: Constructor) -> FuncType:
        """A constructor's type: from its inputs to the type, for all type parameters."""
        found = next((c for c in self.constructors if c == constructor), constructor)
        return FuncType(found.inputs, TypeCall(self.header, self.type_vars), self.type_vars)


def type_data_text(data: TypeData, text: Any = str) -> str:
    """The definition as Relay prints it; `text` writes a type."""
    params = f"[{', '.join(map(text, data.type_vars))}]" if data.type_vars else ""
    lines = []
    for constructor in data.constructors:
        inputs = ", ".join(map(text, constructor.inputs))
        lines.append(f"  {constructor.name_hint}{f'({inputs})' if inputs else ''},\n")
    body = "".join(["\n", *lines]) if lines else ""
    return f"type {data.header}{params} {{{body}}}"


class TypeTable(Mapping[GlobalTypeVar, TypeData]):
    """A module's definitions of types, in the text's order; `items()` is a list, as Relay's."""

    def __init__(self) -> None:
        self._held: dict[GlobalTypeVar, TypeData] = {}

    def define(self, header: GlobalTypeVar, data: TypeData) -> None:
        """Adds a definition, or replaces it.

        Raises TypeError for what is none, ValueError for a constructor that another type has.
        """
        if not isinstance(data, TypeData):
            raise TypeError(f"IRModule: {header} must be a TypeData, got {data!r}")
        names = {constructor.name_hint for constructor in data.constructors}
        for other in self._held.values():
            twice = names & {constructor.name_hint for constructor in other.constructors}
            if other.header != header and twice:
                raise ValueError(f"IRModule: {header} and {other.header} have {', '.join(twice)}")
        self._held[header] = data

    def __getitem__(self, header: GlobalTypeVar) -> TypeData:
        return self._held[header]

    def __iter__(self) -> Iterator[GlobalTypeVar]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def items(self) -> Any:
        """A list of pairs."""
        return list(self._held.items())


class Pattern:
    """What a clause of a `match` compares a value with."""

    __slots__ = ()

    def __call__(self, *args: Pattern) -> PatternConstructor:
        """The constructor of this pattern with patterns for what it holds."""
        if not isinstance(self, PatternConstructor):
            raise TypeError(f"{self!r} is no pattern of a constructor")
        return PatternConstructor(self.constructor, args)


@dataclass(frozen=True, eq=False)
class PatternWildcard(Pattern):
    """`_`: any value."""


@dataclass(frozen=True, eq=False)
class PatternVar(Pattern):
    """`%x`: any value, which the variable is in the clause."""

    var: Expr


@dataclass(frozen=True, eq=False)
class PatternConstructor(Pattern):
    """`Cons(…)`: what that constructor has made, of parts that match."""

    constructor: Constructor
    patterns: tuple[Pattern, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", tuple(self.patterns or ()))


@dataclass(frozen=True, eq=False)
class PatternTuple(Pattern):
    """`(…, …)`: a tuple of fields that match."""

    patterns: tuple[Pattern, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", tuple(self.patterns or ()))


@dataclass(frozen=True, eq=False)
class Clause:
    """`pattern => value`."""

    lhs: Pattern
    rhs: Expr

    def __post_init__(self) -> None:
        object.__setattr__(self, "rhs", as_node(self.rhs, "Clause: the value"))


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Match(ExprMethods):
    """`match (data) { … }`, or `match?` where the clauses need not cover all values."""

    data: Expr
    clauses: tuple[Clause, ...]
    complete: bool = True
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", as_node(self.data, "Match: the data"))
        object.__setattr__(self, "clauses", tuple(self.clauses))

    def __repr__(self) -> str:
        return f"Match({len(self.clauses)} clauses)"


def subpatterns(pattern: Pattern) -> Iterator[Pattern]:
    """A pattern and all within it, in the order of the text."""
    stack = [pattern]
    while stack:
        top = stack.pop()
        yield top
        if isinstance(top, (PatternConstructor, PatternTuple)):
            stack += reversed(top.patterns)


def pattern_vars(pattern: Pattern) -> tuple[Any, ...]:
    """The variables that a pattern binds."""
    return tuple(part.var for part in subpatterns(pattern) if isinstance(part, PatternVar))


def with_vars(pattern: Pattern, new: Any) -> Pattern:
    """The pattern over other variables."""
    if isinstance(pattern, PatternVar):
        return pattern if new[pattern.var] is pattern.var else PatternVar(new[pattern.var])
    if not isinstance(pattern, (PatternConstructor, PatternTuple)):
        return pattern
    parts = tuple(with_vars(part, new) for part in pattern.patterns)
    if all(a is b for a, b in zip(parts, pattern.patterns, strict=True)):
        return pattern
    if isinstance(pattern, PatternTuple):
        return PatternTuple(parts)
    return PatternConstructor(pattern.constructor, parts)
