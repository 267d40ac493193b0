"""The C++ of moves, as `codegen.direct` has it: a kernel for each pair of dtypes."""

from __future__ import annotations

import re

from ..codegen.direct import Family
from .call import MovesCall, check

_PREFIX = "relay_wgrad_moves_"
_ELEMENTS = {
    "float16": ("kHalf", "__half"),
    "bfloat16": ("kBfloat16", "__nv_bfloat16"),
    "float32": ("kFloat", "float"),
}
_NAME = re.compile(rf"{_PREFIX}({'|'.join(_ELEMENTS)})_({'|'.join(_ELEMENTS)})")


def kernel_of(call: MovesCall) -> str:
    """The name of the kernel that serves a call."""
    return f"{_PREFIX}{call.source}_{call.result}"


def _body(name: str) -> str:
    found = _NAME.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r} is no kernel of moves")
    types = ", ".join(_ELEMENTS[dtype][1] for dtype in found.groups())
    return MOVES.exported(name, [MOVES.template("moves_device.h")], f"move_all<{types}>")


def _row(call: MovesCall) -> str:
    kernel = kernel_of(call)
    moves = ", ".join(f"{{{m.blocks}, {m.rows}, {m.columns}}}" for m in call.moves)
    scaled = " scaled" * call.scaled
    return (
        f'    {{"{len(call.moves)} moves {call.source} {call.result}{scaled}", {kernel},'
        f' "{kernel}",\n     Element::{_ELEMENTS[call.source][0]},'
        f" Element::{_ELEMENTS[call.result][0]}, {str(call.scaled).lower()},\n     {{{moves}}}}},"
    )


MOVES = Family(
    "moves", "Casts and transpositions", "Moves", "RelayWgradMovesKernel", check, _row, kernel_of,
    _body,
)  # fmt: skip
