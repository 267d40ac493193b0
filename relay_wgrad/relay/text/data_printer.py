"""The printer's part for data types, `match`, references and type parameters."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from ..adt import (
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    TypeData,
    type_data_text,
)
from ..ast import Expr, RefCreate, RefRead, RefWrite, Var
from ..types import DTYPES, OTHER_NAMES, Dim, FuncType, Type, TypeVar, below, type_text

Step = Generator["Step", Any, Any]


class DataPrinter:
    """What `text.printer` prints beside operators' programs."""

    def __init__(self, defined: Sequence[str]) -> None:
        self._types: dict[Type, str] = {}
        self._defined = tuple(defined)  # names of types
        self._scope: dict[TypeVar, str] = {}  # type parameters
        self._level = 0

    # What the whole printer has.

    def _bind(self, var: Var) -> str:
        raise NotImplementedError

    def _use(self, node: Expr) -> str:
        raise NotImplementedError

    def _operand(self, node: Expr) -> Step:
        raise NotImplementedError

    def _block(self, body: Expr) -> Step:
        raise NotImplementedError

    def _indent(self, level: int) -> str:
        raise NotImplementedError

    def _dim(self, dim: Dim) -> str:
        raise NotImplementedError

    # -- types

    def define_type(self, data: TypeData) -> str:
        """`type Name[A] { … }`."""
        self._open_types(data.type_vars)
        text = type_data_text(data, self._type)
        self._close_types(data.type_vars)
        return text + "\n"

    def _open_types(self, params: Sequence[TypeVar]) -> str:
        """Type parameters are in scope; their text."""
        if not params:
            return ""
        self._types = {}
        self._scope |= _named(params, {*self._scope.values(), *self._defined})
        return f"[{', '.join(self._scope[param] for param in params)}]"

    def _close_types(self, params: Sequence[TypeVar]) -> None:
        for param in params:
            self._types = {}
            self._scope.pop(param, None)

    def _type(self, type_: Type) -> str:
        text = self._types.get(type_)
        if text is None:
            names = dict(self._scope)
            # Of functions' types within this one; what nothing binds is written as it is called.
            own = [var for var in _type_vars(type_) if var not in names]
            names |= _named(own, {*names.values(), *self._defined})
            text = self._types[type_] = type_text(type_, self._dim, names.__getitem__)
        return text

    # -- expressions

    def _reference(self, node: Expr) -> str | None:
        """A reference's operation; None for another node."""
        if isinstance(node, RefCreate):
            return f"ref({self._use(node.value)})"
        if isinstance(node, RefRead):
            return f"ref_read({self._use(node.ref)})"
        if isinstance(node, RefWrite):
            return f"ref_write({self._use(node.ref)}, {self._use(node.value)})"
        return None

    def _match(self, node: Match) -> Step:
        data = yield self._operand(node.data)
        lines = [f"match{'' if node.complete else '?'} ({data}) {{"]
        self._level += 1
        for clause in node.clauses:
            pattern = self._pattern(clause.lhs)
            value = yield self._block(clause.rhs)
            lines.append(f"{self._indent(self._level)}{pattern} => {value},")
        self._level -= 1
        return "\n".join([*lines, self._indent(self._level) + "}"])

    def _pattern(self, pattern: Pattern) -> str:
        if isinstance(pattern, PatternVar):
            return self._bind(pattern.var)
        if not isinstance(pattern, (PatternConstructor, PatternTuple)):
            return "_"
        parts = ", ".join(map(self._pattern, pattern.patterns))
        if isinstance(pattern, PatternTuple):
            return f"({parts})"
        return pattern.constructor.name_hint + (f"({parts})" if parts else "")


def _type_vars(type_: Type) -> list[TypeVar]:
    """The variables of a type, each once."""
    found: dict[TypeVar, None] = {}
    stack = [type_]
    while stack:
        part = stack.pop()
        if isinstance(part, FuncType):
            found.update(dict.fromkeys(part.type_params))
        if isinstance(part, TypeVar):
            found[part] = None
        stack += reversed(below(part))
    return list(found)


def _named(variables: Iterable[TypeVar], taken: set[str]) -> dict[TypeVar, str]:
    """A name for each, that nothing else has and no dtype."""
    out = {}
    for var in variables:
        name = re.sub(r"\W", "_", var.name_hint, flags=re.ASCII)
        name = name if name[:1].isalpha() else "T" + name
        while name in taken or name in DTYPES or name in OTHER_NAMES:
            name += "_"
        taken.add(name)
        out[var] = name
    return out
