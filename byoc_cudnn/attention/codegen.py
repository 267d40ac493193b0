"""The C++ of attention, by `codegen.direct`: a kernel for each direction, dtype and width."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from ..codegen.templates import shared
from .call import WORDS, AttentionCall, Place, check


def _body(direction: str, dtype: str, width: str, tail: str) -> tuple[Sequence[str], str] | None:
    texts = [shared("warp_device.h"), ATTENTION.template("attention_device.h")]
    return None if tail else (texts, f"{direction}<{ELEMENTS[dtype][1]}, {width}>")


def _row(call: AttentionCall) -> tuple[str, str]:
    sizes = ", ".join(map(str, call.sizes))
    numbers = ", ".join(map(str, (call.rows, call.columns, call.width, repr(call.scale))))
    places = ",\n      ".join(map(_place, call.places))
    results = ", ".join(map(str, call.results))
    backward = str(call.direction == "backward").lower()
    return call.problem, (
        f"{ELEMENTS[call.dtype][0]}, {backward}, {{{sizes}}}, {numbers},\n"
        f"     {{{places}}}, {{{results}}}"
    )


def _place(at: Place) -> str:
    return f"{{{at.first}, {{{', '.join(map(str, at.steps))}}}, {at.row}}}"


ATTENTION = Family(
    "attention", "Attention and its gradient", "Attention", check, WORDS, _row, _body
)  # fmt: skip
