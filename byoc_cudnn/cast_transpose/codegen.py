"""The C++ of casts and transpositions, by `codegen.direct`: a kernel for each pair of dtypes."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from .call import WORDS, CastTransposeCall, check


def _body(source: str, result: str, tail: str) -> tuple[Sequence[str], str] | None:
    types = ", ".join(ELEMENTS[dtype][1] for dtype in (source, result))
    text = CAST_TRANSPOSES.template("cast_transpose_device.h")
    return None if tail else ([text], f"cast_transpose_all<{types}>")


def _row(call: CastTransposeCall) -> tuple[str, str]:
    sizes = ", ".join(f"{{{m.blocks}, {m.rows}, {m.columns}}}" for m in call.tensors)
    scaled = " scaled" * call.scaled
    words = f"{len(call.tensors)} casts {call.source} {call.result}{scaled}"
    elements = f"{ELEMENTS[call.source][0]},\n     {ELEMENTS[call.result][0]}"
    return words, f"{elements}, {str(call.scaled).lower()},\n     {{{sizes}}}"


CAST_TRANSPOSES = Family(
    "cast_transpose", "Casts and transpositions", "CastTransposes", check, WORDS, _row, _body,
    moves=True,
)  # fmt: skip
