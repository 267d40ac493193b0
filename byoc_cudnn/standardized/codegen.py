"""The C++ of standardized weights, by `codegen.direct`: a kernel for each direction and dtype."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from .call import WORDS, StandardizedCall, check


def _body(direction: str, dtype: str, tail: str) -> tuple[Sequence[str], str] | None:
    text = STANDARDIZED.template("standardized_device.h")
    return None if tail else ([text], f"{direction}_all<{ELEMENTS[dtype][1]}>")


def _row(call: StandardizedCall) -> tuple[str, str]:
    backward = str(call.direction == "backward").lower()
    weights = ", ".join(
        f"{{{w.filters}, {w.channels}, {w.taps}, {w.factor!r}, {str(w.gained).lower()}}}"
        for w in call.weights
    )
    words = f"{len(call.weights)} standardized weights {call.direction} {call.dtype}"
    return words, f"{ELEMENTS[call.dtype][0]}, {backward}, {call.epsilon!r},\n     {{{weights}}}"


STANDARDIZED = Family(
    "standardized", "Standardized weights", "Standardized", check, WORDS, _row, _body
)  # fmt: skip
