"""Names with options as text: `huber(delta=2)`, `cosine(steps=100)`."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """(name, options) of a name, or of a call with literal keywords; ("", {}) for other text."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords if k.arg}
            if len(options) == len(node.keywords):
                return node.func.id, options
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return "", {}


def record_of(
    what: str, text: str, records: Mapping[str, type[T]], others: Sequence[str] = ()
) -> T:
    """The dataclass of a name with its options.

    Raises ValueError for a name that is none, for an option that it has not, and as the class does.
    """
    name, options = parsed(text)
    if name not in records:
        raise ValueError(f"{what}={text!r}: expected {', '.join((*records, *others))}")
    record: Any = records[name]
    known = [f.name for f in dataclasses.fields(record)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name}: {option!r} is none of its options, {', '.join(known)}")
    try:
        made: T = record(**options)
    except TypeError as error:  # an option that must be given
        raise ValueError(f"{name}: {error}") from error
    return made


def text_of(name: str, record: Any) -> str:
    """As `record_of` reads it: what is not the default."""
    given = [
        f"{f.name}={getattr(record, f.name)!r}"
        for f in dataclasses.fields(record)
        if getattr(record, f.name) != f.default
    ]
    return f"{name}({', '.join(given)})" if given else name
