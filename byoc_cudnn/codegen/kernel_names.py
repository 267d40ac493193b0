"""Names of kernels: of a family's prefix, and a word for each thing that a kernel is made for."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ..decision import YES, Decision, no

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
"""What a symbol may be, which becomes part of generated source."""
Words = Mapping[str, Collection[str] | None]
"""Attributes of a call in the order of a name's words, and the values that each may have; None for
numbers of whatever values.
"""
_NUMBERS = r"\d+(?:x\d+)*"


def known(call: Any, words: Words) -> Decision:
    """Whether a call's words are some that there are, and its symbol is one."""
    for attribute, values in words.items():
        value = getattr(call, attribute)
        if values is not None and value not in values:
            return no(f"{attribute} {value!r}; there are {', '.join(map(repr, values))}")
    if not IDENTIFIER.fullmatch(call.symbol):
        return no(f"symbol {call.symbol!r} is no identifier")
    return YES


def name_of(prefix: str, call: Any, words: Words) -> str:
    """A call's kernel; "none" stands for an empty word, "3x3" for numbers."""
    values = [getattr(call, attribute) for attribute in words]
    texts = [value if isinstance(value, str) else "x".join(map(str, value)) for value in values]
    return "_".join([prefix, *(text or "none" for text in texts)])


def words_of(prefix: str, name: str, words: Words) -> tuple[str, ...] | None:
    """The words of a kernel's name and its tail; None for a name that no call has."""
    # The longest first: one may begin as another does.
    patterns = [
        "|".join(sorted((value or "none" for value in values), key=len, reverse=True))
        if values is not None else _NUMBERS
        for values in words.values()
    ]  # fmt: skip
    pattern = "_".join([prefix, *(f"({one})" for one in patterns)])
    found = re.fullmatch(rf"{pattern}((?:_\w+)?)", name, re.ASCII)
    return tuple("" if word == "none" else word for word in found.groups()) if found else None
