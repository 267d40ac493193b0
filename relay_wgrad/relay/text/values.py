"""The parser's reductions below expressions: types, type comments, attributes' values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lark import Token, Transformer

from ..errors import Complaint
from ..spans import Span
from ..types import (
    ANY,
    DTYPES,
    OTHER_NAMES,
    FuncType,
    GlobalTypeVar,
    RelayRefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeVar,
    is_vector,
)
from . import literals
from .metadata import CONSTANT, Table

Children = list[Any]
# With how deep it nests: a type is hashed, compared and printed by recursion.
DeepType = tuple[Type, int]

MAX_TYPE_DEPTH = 100
_META = re.compile(r"meta\[([\w.]+)\]\[(\d+)\]")
# The type ends where `span=` or the comment does: `=` stands in no type.
_NOTE = re.compile(r"/\*\s*(?:ty=([^=]*?))??(?:\bspan=(\S*):(\d{1,9}):(\d{1,9})\s*)?\*/")


class Values(Transformer[Token, Any]):
    """One text's types and metadata."""

    # Parses a text that is one type; set by who owns the grammar.
    parse_type: Callable[[str], DeepType]

    def reset(self, source: str, table: Table) -> None:
        """Begins a text."""
        self.source = source
        self.objects = dict(table)
        # The same few types come again and again: each text of one is read once.
        self._types: dict[str, DeepType] = {}
        self._type_vars: list[dict[str, TypeVar]] = []  # in scope, innermost last
        self.defined: dict[str, GlobalTypeVar] = {}  # types
        self._named: dict[str, int] = {}  # types that are used, and where first
        self._begin = 0  # of what is parsed within the text

    def span(self, first: Token, last: Token, origin: Span | None = None) -> Span:
        """From one token to another."""
        return Span(
            self.source,
            first.line or 0,
            last.end_line or 0,
            first.column or 0,
            last.end_column or 0,
            origin,
        )

    # -- types

    def tensor(self, children: Children) -> DeepType:
        token = children[0]
        found = self._types.get(token)
        if found is None:
            found = self._types[str(token)] = (sound(token, self._tensor), 0)
        return found

    def _tensor(self, text: str) -> TensorType:
        return literals.tensor_type(text, self._meta)

    def scalar(self, children: Children) -> DeepType:
        token = children[0]
        for variables in reversed(self._type_vars):
            if token in variables:
                return variables[token], 0
        if token in DTYPES or token in OTHER_NAMES or is_vector(token):
            return TensorType((), sound(token, literals.known_dtype)), 0
        return TypeCall(self._header(token), ()), 1

    def _header(self, token: Token) -> GlobalTypeVar:
        self._named.setdefault(str(token), self._begin + (token.start_pos or 0))
        return self.defined.get(token, GlobalTypeVar(str(token)))

    def check_types(self) -> None:
        """Raises Complaint for a type that nothing defines."""
        for name, offset in self._named.items():
            if name not in self.defined:
                raise Complaint(offset, f"unknown dtype {name[:60]}, and no type of the text's")

    def type_call(self, children: Children) -> DeepType:
        token, *args = children
        held = tuple(arg for arg, _ in args if arg is not None)
        return TypeCall(self._header(token), held), _deeper(args)

    def ref_type(self, children: Children) -> DeepType:
        token, value = children
        if token not in ("ref",):
            raise Complaint(token.start_pos or 0, f"{token[:60]} is no type, and takes no other")
        return RelayRefType(value[0]), _deeper([value])

    def type_params(self, children: Children) -> tuple[TypeVar, ...]:
        """Type parameters are in scope from here until `close_types`."""
        names: dict[str, TypeVar] = {}
        for token in children:
            if token in names:
                raise Complaint(token.start_pos or 0, f"the type parameter {token[:60]} twice")
            names[str(token)] = TypeVar(str(token))
        self._type_vars.append(names)
        return tuple(names.values())

    def close_types(self, params: tuple[TypeVar, ...] | None) -> tuple[TypeVar, ...]:
        """These type parameters go out of scope."""
        if params is None:
            return ()
        self._type_vars.pop()
        return params

    def unknown_type(self, children: Children) -> None:
        """`_`: to be inferred."""

    def tuple_type(self, children: Children) -> DeepType:
        return TupleType(tuple(field for field, _ in children)), _deeper(children)

    def func_type(self, children: Children) -> DeepType:
        token, type_params, *parts = children
        type_params = self.close_types(type_params)
        depth = _deeper(parts)
        if depth > MAX_TYPE_DEPTH:
            raise Complaint(token.start_pos, f"a type that nests deeper than {MAX_TYPE_DEPTH}")
        *args, result = (part for part, _ in parts)
        return FuncType(tuple(args), result, type_params), depth

    def plain(self, annotation: DeepType | None, token: Token) -> Type | None:
        """The type alone.  Raises Complaint at `token` where it nests too deep."""
        if annotation is None:
            return None
        if annotation[1] > MAX_TYPE_DEPTH:
            problem = f"a type that nests deeper than {MAX_TYPE_DEPTH}"
            raise Complaint(token.start_pos or 0, problem)
        return annotation[0]

    def note(self, token: Token | None) -> tuple[Type | None, Span | None]:
        """What `/* ty=… span=… */` says; either may be missing."""
        if token is None:
            return None, None
        match = _NOTE.fullmatch(token)
        if match is None:
            raise Complaint(token.start_pos or 0, "a type comment is /* ty=type span=source:1:2 */")
        type_, source, line, column = match.groups()
        origin = None
        if source is not None:
            origin = Span(source, int(line), int(line), int(column), int(column))
        if type_ is None:
            return None, origin
        # What a name stands for depends on the type parameters in scope.
        found = None if self._type_vars else self._types.get(type_)
        if found is None:
            offset = (token.start_pos or 0) + match.start(1)
            found = self._parse_note(type_, offset)
            if not self._type_vars:
                self._types[type_] = found
        return self.plain(found, token), origin

    def _parse_note(self, text: str, offset: int) -> DeepType:
        self._begin = offset
        try:
            return self.parse_type(text)
        except Complaint as complaint:
            problem = f"in a type comment: {complaint.problem}"
            raise Complaint(offset + complaint.offset, problem, complaint.construct) from None
        finally:
            self._begin = 0

    # -- values of attributes

    def attr_number(self, children: Children) -> Any:
        return sound(children[0], literals.attribute_number)

    def string(self, children: Children) -> Any:
        return sound(children[0], literals.string)

    def true(self, children: Children) -> bool:
        return True

    def false(self, children: Children) -> bool:
        return False

    def none(self, children: Children) -> None:
        return None

    def any_dim(self, children: Children) -> Any:
        return ANY

    def values(self, children: Children) -> tuple[Any, ...]:
        return tuple(children)

    def attr_meta(self, children: Children) -> Any:
        token = children[0]
        if token.startswith(f"meta[{CONSTANT}]"):
            raise Complaint(token.start_pos, "a constant can't be an attribute's value")
        return self.meta_object(token)

    def meta_object(self, token: Token) -> Any:
        """What `meta[key][index]` refers to.  Raises Complaint."""
        return sound(token, self._meta)

    def _meta(self, text: str) -> Any:
        match = _META.fullmatch(text)
        if match is None:
            raise ValueError(f"malformed: {text[:60]}")
        key, digits = match.groups()
        objects = self.objects.get(key, ())
        if len(digits) > 9 or int(digits) >= len(objects):
            held = f"{len(objects)} of them" if objects else "none of that type"
            if not self.objects:
                held += " (no #[metadata] section: mod.astext() writes it, print(mod) does not)"
            raise ValueError(f"{text[:60]}: the metadata holds {held}")
        return objects[int(digits)]


def sound(token: Token, read: Callable[[str], Any]) -> Any:
    """A token's value, with a complaint at its place."""
    try:
        return read(str(token))
    except ValueError as error:
        raise Complaint(token.start_pos or 0, str(error)) from None


def _deeper(parts: list[DeepType]) -> int:
    return 1 + max((depth for _, depth in parts), default=0)
