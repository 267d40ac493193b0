"""The C++ of joins, as `codegen.direct` has it: a kernel for each dtype."""

from __future__ import annotations

import re

from ..codegen.direct import ELEMENTS, Family
from .call import DTYPES, JoinsCall, check

_PREFIX = "relay_wgrad_joins_"
_NAME = re.compile(rf"{_PREFIX}({'|'.join(DTYPES)})")


def kernel_of(call: JoinsCall) -> str:
    """The name of the kernel that serves a call; pieces are told when it runs."""
    return f"{_PREFIX}{call.dtype}"


def _body(name: str) -> str:
    found = _NAME.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r} is no kernel of joins")
    element = ELEMENTS[found.group(1)][1]
    return JOINS.exported(name, [JOINS.template("joins_device.h")], f"joined<{element}>")


def _row(call: JoinsCall) -> str:
    kernel = kernel_of(call)
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
    return (
        f'    {{"{words}", {kernel}, "{kernel}",\n'
        f"     Element::{ELEMENTS[call.dtype][0]}, {{{channels}}},\n     {{{results}}}}},"
    )


JOINS = Family(
    "joins", "Tensors joined along their channels", "Joins", "RelayWgradJoinsKernel", check, _row,
    kernel_of, _body,
)  # fmt: skip
