"""The C++ of standardized weights, by `codegen.direct`: a kernel for each direction and dtype."""

from __future__ import annotations

import re

from ..codegen.direct import ELEMENTS, Family
from .call import DIRECTIONS, DTYPES, StandardizedCall, check

_PREFIX = "relay_wgrad_standardized_"
_NAME = re.compile(rf"{_PREFIX}({'|'.join(DIRECTIONS)})_({'|'.join(DTYPES)})")


def kernel_of(call: StandardizedCall) -> str:
    """The name of the kernel that serves a call."""
    return f"{_PREFIX}{call.direction}_{call.dtype}"


def _body(name: str) -> str:
    found = _NAME.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r} is no kernel of standardized weights")
    direction, dtype = found.groups()
    text = STANDARDIZED.template("standardized_device.h")
    return STANDARDIZED.exported(name, [text], f"{direction}_all<{ELEMENTS[dtype][1]}>")


def _row(call: StandardizedCall) -> str:
    kernel, backward = kernel_of(call), str(call.direction == "backward").lower()
    weights = ", ".join(
        f"{{{w.filters}, {w.channels}, {w.taps}, {w.factor!r}, {str(w.gained).lower()}}}"
        for w in call.weights
    )
    return (
        f'    {{"{len(call.weights)} standardized weights {call.direction} {call.dtype}",'
        f' {kernel}, "{kernel}",\n     Element::{ELEMENTS[call.dtype][0]}, {backward},'
        f" {call.epsilon!r},\n     {{{weights}}}}},"
    )


STANDARDIZED = Family(
    "standardized", "Standardized weights", "Standardized", "RelayWgradStandardizedKernel", check,
    _row, kernel_of, _body,
)  # fmt: skip
