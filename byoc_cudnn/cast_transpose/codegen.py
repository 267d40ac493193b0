"""The C++ of casts and transpositions, by `codegen.direct`: a kernel for each pair of dtypes."""

from __future__ import annotations

import re

from ..codegen.direct import Family
from .call import CastTransposeCall, check

_PREFIX = "relay_wgrad_cast_transpose_"
_ELEMENTS = {
    "float16": ("kHalf", "__half"),
    "bfloat16": ("kBfloat16", "__nv_bfloat16"),
    "float32": ("kFloat", "float"),
}
_NAME = re.compile(rf"{_PREFIX}({'|'.join(_ELEMENTS)})_({'|'.join(_ELEMENTS)})")


def kernel_of(call: CastTransposeCall) -> str:
    """The name of the kernel that serves a call."""
    return f"{_PREFIX}{call.source}_{call.result}"


def _body(name: str) -> str:
    found = _NAME.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r} is no kernel of casts and transpositions")
    types = ", ".join(_ELEMENTS[dtype][1] for dtype in found.groups())
    return CAST_TRANSPOSES.exported(
        name, [CAST_TRANSPOSES.template("cast_transpose_device.h")], f"cast_transpose_all<{types}>"
    )


def _row(call: CastTransposeCall) -> str:
    kernel = kernel_of(call)
    sizes = ", ".join(f"{{{m.blocks}, {m.rows}, {m.columns}}}" for m in call.tensors)
    scaled = " scaled" * call.scaled
    return (
        f'    {{"{len(call.tensors)} casts {call.source} {call.result}{scaled}", {kernel},'
        f' "{kernel}",\n     Element::{_ELEMENTS[call.source][0]},'
        f" Element::{_ELEMENTS[call.result][0]}, {str(call.scaled).lower()},\n     {{{sizes}}}}},"
    )


CAST_TRANSPOSES = Family(
    "cast_transpose", "Casts and transpositions", "CastTransposes", "RelayWgradCastTransposeKernel",
    check, _row, kernel_of, _body, moves=True,
)  # fmt: skip
