"""The C++ of casts and transpositions, by `codegen.direct`: a kernel for each pair of dtypes."""

from __future__ import annotations

import re

from ..codegen.direct import ELEMENTS, Family
from .call import DTYPES, CastTransposeCall, check

_PREFIX = "relay_wgrad_cast_transpose_"
_NAME = re.compile(rf"{_PREFIX}({'|'.join(DTYPES)})_({'|'.join(DTYPES)})")


def kernel_of(call: CastTransposeCall) -> str:
    """The name of the kernel that serves a call."""
    return f"{_PREFIX}{call.source}_{call.result}"


def _body(name: str) -> str:
    found = _NAME.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r} is no kernel of casts and transpositions")
    types = ", ".join(ELEMENTS[dtype][1] for dtype in found.groups())
    return CAST_TRANSPOSES.exported(
        name, [CAST_TRANSPOSES.template("cast_transpose_device.h")], f"cast_transpose_all<{types}>"
    )


def _row(call: CastTransposeCall) -> str:
    kernel = kernel_of(call)
    sizes = ", ".join(f"{{{m.blocks}, {m.rows}, {m.columns}}}" for m in call.tensors)
    scaled = " scaled" * call.scaled
    return (
        f'    {{"{len(call.tensors)} casts {call.source} {call.result}{scaled}", {kernel},'
        f' "{kernel}",\n     Element::{ELEMENTS[call.source][0]},'
        f" Element::{ELEMENTS[call.result][0]}, {str(call.scaled).lower()},\n     {{{sizes}}}}},"
    )


CAST_TRANSPOSES = Family(
    "cast_transpose", "Casts and transpositions", "CastTransposes", "RelayWgradCastTransposeKernel",
    check, _row, kernel_of, _body, moves=True,
)  # fmt: skip
