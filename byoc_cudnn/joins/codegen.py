"""The C++ of joins, as `codegen.direct` has it: a kernel for each dtype; pieces come at the run."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from .call import WORDS, JoinsCall, check


def _body(dtype: str, tail: str) -> tuple[Sequence[str], str] | None:
    return None if tail else ([JOINS.template("joins_device.h")], f"joined<{ELEMENTS[dtype][1]}>")


def _row(call: JoinsCall) -> tuple[str, str]:
    results = ", ".join(
        "{" + ", ".join(
            f"{{{piece.width}, {{{', '.join(f'{{{o}, {first}}}' for o, first in piece.terms)}}}}}"
            for piece in pieces
        ) + "}"
        for pieces in call.results
    )  # fmt: skip
    terms = sum(len(piece.terms) for piece in call.pieces)
    words = f"join {call.dtype} {len(call.results)} of {len(call.pieces)} pieces, {terms} terms"
    channels = ", ".join(map(str, call.channels))
    return words, f"{ELEMENTS[call.dtype][0]}, {{{channels}}},\n     {{{results}}}"


def _overwrites(call: JoinsCall) -> list[tuple[int, int]]:
    return [(len(call.channels) + result, operand) for result, operand in call.overwrites]


JOINS = Family(
    "joins", "Tensors joined along their channels", "Joins", check, WORDS, _row, _body,
    overwrites_of=_overwrites,
)  # fmt: skip
