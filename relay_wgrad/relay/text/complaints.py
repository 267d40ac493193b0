"""What lark's errors mean to who wrote the text: the construct that is refused, or what was due."""

from __future__ import annotations

import re

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from ..errors import Complaint

_REFUSED = {
    "_": "`_` within a type",
}
_NAMES = {
    "LOCAL": "a variable", "GRAPH": "a graph variable", "GLOBAL": "a global function",
    "NAME": "a name", "NUMBER": "a number", "STRING": "a string", "META": "meta[…]",
    "INDEX": "a projection", "TENSOR": "a tensor type", "NOTE": "a type comment",
    "VERSION": '#[version = "0.0.5"]', "$END": "the end", "LPAR": "`(`", "RPAR": "`)`",
    "LSQB": "`[`", "RSQB": "`]`", "LBRACE": "`{`", "RBRACE": "`}`", "COMMA": "`,`",
    "COLON": "`:`", "SEMICOLON": "`;`", "EQUAL": "`=`", "QUESTION": "`?`",
    "INFIX": "an operator", "UNKNOWN": "`_`", "FREE": "`free_var`",
    "DEF": "`def`", "_ARROW": "`->`", "FAT": "`=>`", "MATCH": "`match`",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w*")
_BEFORE_PARAMETERS = re.compile(r"(?:\bfn|\bdef\s+@[\w.]+)\s*\Z")
_LOOK_BACK = 200  # characters
_ALSO = {"a type comment", "an operator"}  # may stand nearly everywhere
_MOST = 6  # alternatives that a message names


def explain(error: UnexpectedInput, text: str) -> Complaint:
    """The complaint for what lark met."""
    offset = len(text)
    expected: set[str] = set()
    if isinstance(error, UnexpectedCharacters):
        offset, expected = error.pos_in_stream or 0, set(error.allowed or ())
    elif isinstance(error, UnexpectedToken):
        expected = set(error.expected)
        if error.token.type != "$END":
            offset = error.token.start_pos or 0
    return _refused(text, offset, expected) or Complaint(offset, _due(text, offset, expected))


def _refused(text: str, offset: int, expected: set[str]) -> Complaint | None:
    word = _WORD.match(text, offset)
    before = text[max(0, offset - _LOOK_BACK) : offset]
    construct = ""
    if word and word[0] in _REFUSED:
        construct = _REFUSED[word[0]]
    elif text.startswith("{", offset) and "COLON" in expected:
        construct = "virtual devices of parameters"
    elif text.startswith("=", offset) and _BEFORE_PARAMETERS.search(before):
        construct = "external functions"
    return Complaint(offset, f"not supported: {construct}", construct) if construct else None


def _due(text: str, offset: int, expected: set[str]) -> str:
    if text.startswith("Tensor", offset):
        return "a malformed tensor type: it is Tensor[(dimensions), dtype]"
    if text.startswith("meta[", offset) or text.startswith("meta[", offset - 4):
        return "a malformed reference to metadata: it is meta[key][index]"
    names = sorted({_NAMES.get(name, f"`{name.lower()}`") for name in expected} - _ALSO)
    if len(names) > _MOST:
        due = "nothing that begins so"
    elif names:
        due = " or ".join(names)
    else:
        due = "something else"
    if offset >= len(text):
        found = "the text ends"
    else:
        piece = re.compile(r"\S\w*").match(text, offset)
        found = f"`{piece[0][:40]}`" if piece else "white space"
    if len(names) > _MOST:
        return f"{found} can't stand here"
    return f"{found} where {due} was expected"
