"""`fromtext`, `parse`, `parse_expr`: Relay's text to its syntax tree."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

from lark import Lark
from lark.exceptions import UnexpectedInput

from ..ast import Expr, IRModule
from ..errors import Complaint
from ..infer import infer_module
from ..spans import Span
from .builder import Builder
from .complaints import explain
from .dialects import Dialect, release_of
from .metadata import Table, decode
from .scan import flat_comments, scan
from .values import DeepType

MAX_SIZE = 64 * 2**20
MAX_DEPTH = 1000
_VERSION = re.compile(r'\s*#\[version *= *"([^"\n]*)"\]')
_KNOWN = "0.0.5"


class _Parser:
    """lark's tables, built once for each thread: the reductions hold the state of a text."""

    def __init__(self) -> None:
        grammar = (resources.files(__package__) / "grammar.lark").read_text(encoding="utf-8")
        self.builder = Builder()
        self._lark = Lark(
            grammar, parser="lalr", start=["module", "expression", "type"], transformer=self.builder
        )
        self.builder.parse_type = self._type

    def module(self, text: str) -> None:
        """Leaves the functions with the builder.  Raises Complaint."""
        self._run(text, "module")

    def expression(self, text: str) -> Expr:
        """Raises Complaint."""
        self.builder.scopes.enter(())  # it has graph variables, as a function
        return self._run(text, "expression")  # type: ignore[return-value]

    def _type(self, text: str) -> DeepType:
        result: DeepType = self._run(text, "type")
        return result

    def _run(self, text: str, start: str) -> DeepType:
        try:
            return self._lark.parse(text, start=start)  # type: ignore[return-value]
        except UnexpectedInput as error:
            raise explain(error, text) from None


R = TypeVar("R")
_Read = Callable[[_Parser, str, Table], R]


class _OfThread(threading.local):
    parser: _Parser | None = None


_of_thread = _OfThread()


def fromtext(
    text: str,
    source_name: str = "from_string",
    *,
    max_size: int = MAX_SIZE,
    max_depth: int = MAX_DEPTH,
    release: str | None = None,
) -> IRModule:
    """The module that a text of Relay 0.0.5 describes.

    TVM 0.8 to 0.19 all print that version, with differences (docs/reference/dialects.md).  The TVM
    that printed the text is `release`, "0.8" say; without it, the one that the text's metadata
    names, else 0.19.

    Graph variables become shared nodes; a type comment becomes its node's `checked_type`.  Time and
    memory are linear in the text's length, which `max_size` bounds (characters); `max_depth` bounds
    the nesting of brackets.

    Raises RelayTextError, with line and column: the text is malformed, too large or too deep.  Its
    subclass UnsupportedConstructError names what Relay has and this leaves out: external functions,
    virtual devices; and what nothing since a release means.
    Raises TypeError when `text` is no str, ValueError for a `release` that is no version of TVM.
    """
    return _checked(text, source_name, max_size, max_depth, _module, release)


def parse(
    source: str,
    source_name: str = "from_string",
    init_module: IRModule | None = None,
    init_meta_table: Mapping[str, Sequence[Any]] | None = None,
) -> IRModule:
    """As `fromtext`, with the functions of a module and objects of a metadata table at hand.

    As in Relay, types are inferred, where `fromtext` leaves a program as it is written.
    The functions of `init_module` stand before the text's; `init_meta_table` is for a text that has
    no `#[metadata]` of its own.

    Raises RelayTextError as `fromtext`, and for a function that both have; as `InferType`.
    """
    given = init_module.functions if init_module is not None else {}
    table = tuple((key, tuple(objects)) for key, objects in (init_meta_table or {}).items())

    def read(parser: _Parser, text: str, own: Table) -> IRModule:
        if not own:
            parser.builder.reset(source_name, table)
        parser.builder.functions.update(given)
        parser.builder.has_types(init_module.type_definitions if init_module is not None else {})
        return _module(parser, text, own or table)

    return infer_module(_checked(source, source_name, MAX_SIZE, MAX_DEPTH, read))


def parse_expr(
    text: str,
    source_name: str = "from_string",
    *,
    max_size: int = MAX_SIZE,
    max_depth: int = MAX_DEPTH,
    release: str | None = None,
) -> Expr:
    """The expression that a text describes, a function say; the line of the version may be missing.

    Its variables are those that it binds and those that `free_var %x: …;` names.  Limits, releases
    and errors as `fromtext`.
    """
    return _checked(text, source_name, max_size, max_depth, _expression, release)


def _checked(
    text: str,
    source: str,
    max_size: int,
    max_depth: int,
    read: _Read[R],
    release: str | None = None,
) -> R:
    if not isinstance(text, str):
        raise TypeError(f"a Relay text is a str, not {type(text).__name__}")
    try:
        return _parse(text, source, max_size, max_depth, read, release)
    except Complaint as complaint:
        error = complaint.located(text, source)
    # Outside of the handler, so that the error holds no chain of internal ones.
    raise error


def _module(parser: _Parser, text: str, table: Table) -> IRModule:
    parser.module(text)
    builder = parser.builder
    for name, (var, offset) in builder.global_vars.items():
        if var.name not in builder.functions:
            raise Complaint(offset, f"{name} is not defined in this module")
    builder.check_types()
    return IRModule(builder.functions, builder.type_data, metadata=table)


def _expression(parser: _Parser, text: str, table: Table) -> Expr:
    parser.builder.is_module = False
    return parser.expression(text)


def _parse(
    text: str, source: str, max_size: int, max_depth: int, read: _Read[R], release: str | None
) -> R:
    if len(text) > max_size:
        raise Complaint(0, f"{len(text)} characters, more than max_size = {max_size}")
    version = _VERSION.match(text)
    if version is None and read is not _expression:
        raise Complaint(0, f'the text begins with #[version = "{_KNOWN}"]')
    if version is not None and version[1] != _KNOWN:
        raise Complaint(version.start(1), f"version {version[1][:40]}: only {_KNOWN} is known")
    dialect = Dialect(release_of(release, text))
    text = flat_comments(dialect.strings(text))
    end = scan(text, max_depth)
    table: Table = ()
    if end < len(text):
        line = text.count("\n", 0, end) + 1
        column = end - text.rfind("\n", 0, end)
        place = Span(source, line, line, column, column + len("#[metadata]"))
        table = decode(text, end, place)
    parser = _of_thread.parser
    if parser is None:
        parser = _of_thread.parser = _Parser()
    builder = parser.builder
    builder.reset(source, table)
    builder.dialect = dialect
    try:
        made = read(parser, text[:end], table)
        dialect.settle()
        return made
    finally:
        # A parser is kept; the program isn't.
        builder.reset("", ())
        builder.dialect = Dialect()
