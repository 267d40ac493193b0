"""The C++ of casts and transpositions, by `codegen.direct`: a kernel for each pair of dtypes."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from .call import WORDS, CastTransposeCall, check

_FILLED = "_filled"


def _body(source: str, result: str, tail: str) -> tuple[Sequence[str], str] | None:
    if tail not in ("", _FILLED):
        return None
    types = ", ".join(ELEMENTS[dtype][1] for dtype in (source, result))
    text = CAST_TRANSPOSES.template("cast_transpose_device.h")
    return [text], f"cast_transpose_all<{types}, {str(tail == _FILLED).lower()}>"


def _tail(call: CastTransposeCall) -> str:
    return _FILLED * call.filled


def _row(call: CastTransposeCall) -> tuple[str, str]:
    fills = [n for m in call.tensors for pair in (m.fills or ((1, 1),) * 3) for n in pair]
    numbers = [[*m.sizes, *fills[6 * i : 6 * i + 6]] for i, m in enumerate(call.tensors)]
    sizes = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in numbers)
    scaled, filled = " scaled" * call.scaled, " filled" * call.filled
    words = f"{len(call.tensors)} casts {call.source} {call.result}{filled}{scaled}"
    elements = f"{ELEMENTS[call.source][0]},\n     {ELEMENTS[call.result][0]}"
    return words, f"{elements}, {str(call.scaled).lower()},\n     {{{sizes}}}"


CAST_TRANSPOSES = Family(
    "cast_transpose", "Casts and transpositions", "CastTransposes", check, WORDS, _row, _body,
    tail_of=_tail, moves=True,
)  # fmt: skip
