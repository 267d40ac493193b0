"""The C++ of attention, by `codegen.direct`: a kernel for each direction, dtype and width."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from ..codegen.templates import shared
from ..softmax.codegen import added_row
from .call import WORDS, AttentionCall, Place, check

_ADDED = "_added"


def _tail(call: AttentionCall) -> str:
    return _ADDED if call.added or call.wide else ""


def _body(direction: str, dtype: str, width: str, tail: str) -> tuple[Sequence[str], str] | None:
    if tail not in ("", _ADDED):
        return None
    texts = [shared("warp_device.h"), ATTENTION.template("attention_device.h")]
    is_added = str(bool(tail)).lower()
    return texts, f"{direction}<{ELEMENTS[dtype][1]}, {width}, {is_added}>"


def _row(call: AttentionCall) -> tuple[str, str]:
    sizes = ", ".join(map(str, call.sizes))
    numbers = ", ".join(map(str, (call.rows, call.columns, call.width, repr(call.scale))))
    places = ",\n      ".join(map(_place, call.places))
    results = ", ".join(map(str, call.results))
    flags = ", ".join(str(f).lower() for f in (call.direction == "backward", call.wide))
    return call.problem, (
        f"{ELEMENTS[call.dtype][0]}, {flags}, {{{sizes}}}, {numbers},\n"
        f"     {{{places}}}, {{{results}}}, {{{added_row(call.added)}}}"
    )


def _place(at: Place) -> str:
    return f"{{{at.first}, {{{', '.join(map(str, at.steps))}}}, {at.row}}}"


ATTENTION = Family(
    "attention", "Attention and its gradient", "Attention", check, WORDS, _row, _body, _tail,
    shares=("added",),
)  # fmt: skip
