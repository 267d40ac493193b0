"""A first, flat pass over the text: brackets, strings, comments, where the metadata begins.

It bounds the nesting before anything nests, and it can say which bracket is never closed, where a
parser only knows that the text ended too early.
"""

from __future__ import annotations

import re

from ..errors import Complaint

# Whole strings and comments, so that what they hold isn't taken for the program's.
_PIECES = re.compile(
    r"""[()\[\]{}]|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|"|/\*[\s\S]*?\*/|/\*|//[^\n]*|\#\[metadata\]"""
)
_DEEPEST_LIST = 50  # attributes' values are compared and printed by recursion
_CLOSES = {")": "(", "]": "[", "}": "{"}


_NESTED = re.compile(r"/\*(?:(?!\*/)[\s\S])*?/\*")
_MARKS = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|//[^\n]*|/\*|\*/')
_INNER = re.compile(r"/\*|\*/")


def flat_comments(text: str) -> str:
    """The text with the marks of comments within comments blanked: Relay's comments nest."""
    if not _NESTED.search(text):
        return text
    parts: list[str] = []
    depth = at = place = 0
    while mark := (_INNER if depth else _MARKS).search(text, at):
        at = mark.end()
        if mark[0] not in ("/*", "*/"):
            continue
        inner = depth > 0 if mark[0] == "/*" else depth > 1
        if inner:
            parts += [text[place : mark.start()], "  "]
            place = at
        depth = max(depth + (1 if mark[0] == "/*" else -1), 0)
    return "".join([*parts, text[place:]])


def scan(text: str, max_depth: int) -> int:
    """The offset of `#[metadata]`, or the text's length.

    Raises Complaint for nesting deeper than `max_depth`, brackets that don't match, and a string or
    a comment without its end.
    """
    opened: list[tuple[str, int]] = []
    lists = 0
    for match in _PIECES.finditer(text):
        piece = match[0]
        if piece in "([{":
            opened.append((piece, match.start()))
            if len(opened) > max_depth:
                raise Complaint(match.start(), f"brackets nest deeper than {max_depth}")
            lists += piece == "["
            if lists > _DEEPEST_LIST:
                raise Complaint(match.start(), f"lists nest deeper than {_DEEPEST_LIST}")
        elif piece in _CLOSES:
            if not opened:
                raise Complaint(match.start(), f"`{piece}` closes nothing")
            bracket, offset = opened.pop()
            lists -= bracket == "["
            if bracket != _CLOSES[piece]:
                problem = f"`{piece}` where the `{bracket}` of {_place(text, offset)} is open"
                raise Complaint(match.start(), problem)
        elif piece == '"':
            raise Complaint(match.start(), "a string without its closing quote")
        elif piece == "/*":
            raise Complaint(match.start(), "a comment without its `*/`")
        elif piece == "#[metadata]":
            # The rest is JSON, to the end.
            _closed(opened)
            return match.start()
    _closed(opened)
    return len(text)


def _closed(opened: list[tuple[str, int]]) -> None:
    if opened:
        bracket, offset = opened[-1]
        raise Complaint(offset, f"`{bracket}` is never closed")


def _place(text: str, offset: int) -> str:
    line = text.count("\n", 0, offset) + 1
    return f"line {line}, column {offset - text.rfind(chr(10), 0, offset)}"
