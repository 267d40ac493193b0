"""The parser's reductions of data types, `match` and references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lark import Token

from ..adt import (
    Clause,
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    TypeData,
    pattern_vars,
)
from ..ast import Call, Expr, RefCreate, RefRead, RefWrite, Var
from ..errors import Complaint
from ..spans import Span
from ..types import GlobalTypeVar, Type, TypeVar
from .metadata import Table
from .scopes import Scopes
from .values import Children, Values

_REFERENCES: dict[str, tuple[Any, int]] = {
    "ref": (RefCreate, 1),
    "ref_read": (RefRead, 1),
    "ref_write": (RefWrite, 2),
}
REFERENCES = frozenset(_REFERENCES)


class DataBuilder(Values):
    """Definitions of types, and what uses them."""

    scopes: Scopes

    def reset(self, source: str, table: Table) -> None:
        super().reset(source, table)
        self.type_data: dict[GlobalTypeVar, TypeData] = {}
        self.constructors: dict[str, Constructor] = {}

    def as_expr(self, value: Any) -> Expr:
        """A node of what an expression's reduction has given."""
        raise NotImplementedError

    def has_types(self, given: Mapping[GlobalTypeVar, TypeData]) -> None:
        """Types that another module defines."""
        for header, data in given.items():
            self.type_data[header] = data
            self.defined[header.name_hint] = header
            self.constructors.update({c.name_hint: c for c in data.constructors})

    # -- definitions

    def type_head(self, children: Children) -> tuple[Token, tuple[TypeVar, ...] | None]:
        token, params = children
        if token in self.defined:
            raise Complaint(token.start_pos or 0, f"the type {token[:60]} is defined twice")
        self.defined[str(token)] = GlobalTypeVar(str(token))
        return token, params

    def constructor(self, children: Children) -> tuple[Token, tuple[Type, ...]]:
        token, *inputs = children
        return token, tuple(self.plain(given, token) for given in inputs if given is not None)  # type: ignore[misc]

    def type_definition(self, children: Children) -> None:
        (token, params), *held = children
        header = self.defined[token]
        made = []
        for place, inputs in filter(None, held):
            if place in self.constructors:
                raise Complaint(place.start_pos or 0, f"the constructor {place[:60]} twice")
            made.append(Constructor(str(place), inputs, header, self.span(place, place)))
            self.constructors[str(place)] = made[-1]
        self.type_data[header] = TypeData(header, self.close_types(params), made)  # type: ignore[arg-type]

    # -- patterns

    def any_pattern(self, children: Children) -> Pattern:
        return PatternWildcard()

    def var_pattern(self, children: Children) -> Pattern:
        token, annotation, note = children
        checked, origin = self.note(note)
        span = self.span(token, token, origin)
        return PatternVar(Var(token[1:], self.plain(annotation, token), span, checked))

    def constructor_pattern(self, children: Children) -> Pattern:
        token, *parts = children
        if token not in self.constructors:
            raise Complaint(
                token.start_pos or 0, f"{token[:60]} is no constructor; a variable is %{token[:60]}"
            )
        held = tuple(part for part in parts if isinstance(part, Pattern))
        return PatternConstructor(self.constructors[token], held)

    def tuple_pattern(self, children: Children) -> Pattern:
        return PatternTuple(tuple(part for part in children if part is not None))

    def arm(self, children: Children) -> Pattern:
        pattern: Pattern = children[0]
        for var in pattern_vars(pattern):
            self.scopes.bind(var)
        return pattern

    def clause(self, children: Children) -> Clause:
        pattern, value = children
        self.scopes.close(len(pattern_vars(pattern)))
        return Clause(pattern, self.as_expr(value))

    def match(self, children: Children) -> Match:
        first, data, *clauses, last = children
        span = self.span(first, last)
        complete = not first.endswith("?")
        held = tuple(clause for clause in clauses if clause is not None)
        made = Match(self.as_expr(data), held, complete, span)
        self.scopes.made(made)
        return made

    # -- expressions

    def constructor_alone(self, token: Token, note: Token | None) -> Expr:
        """A constructor as a value; of one without inputs, what it makes."""
        found = self.constructors[token]
        if found.inputs:
            return found
        checked, origin = self.note(note)
        return Call(found, (), span=self.span(token, token, origin), checked_type=checked)

    def reference(
        self, token: Token, args: tuple[Expr, ...], span: Span, checked: Type | None
    ) -> Expr:
        """`ref(…)`, `ref_read(…)`, `ref_write(…)`."""
        node, count = _REFERENCES[token]
        if len(args) != count:
            raise Complaint(token.start_pos or 0, f"{token} takes {count}, got {len(args)}")
        return node(*args, span=span, checked_type=checked)
