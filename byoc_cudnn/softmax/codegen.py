"""The C++ of softmax, by `codegen.direct`: a kernel for each direction and pair of dtypes."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from .call import WORDS, Added, SoftmaxCall, check


def _body(direction: str, source: str, dtype: str, tail: str) -> tuple[Sequence[str], str] | None:
    types = f"{ELEMENTS[source][1]}, {ELEMENTS[dtype][1]}"
    function = f"of_all<{direction.capitalize()}<{types}>>"
    return None if tail else ([SOFTMAX.template("softmax_device.h")], function)


def added_row(added: Sequence[Added]) -> str:
    """What is added, as host code has it."""
    return ", ".join(
        f"{{{ELEMENTS[one.dtype][0]}, {{{', '.join(_step(*step) for step in one.steps)}}},"
        f" {one.extent}}}"
        for one in added
    )


def _row(call: SoftmaxCall) -> tuple[str, str]:
    added = added_row(call.added)
    flags = ", ".join(str(f).lower() for f in (call.direction == "backward", call.wide))
    elements = ", ".join(ELEMENTS[d][0] for d in (call.source, call.dtype))
    return call.problem, (f"{elements}, {flags}, {call.columns}, {call.scale!r},\n     {{{added}}}")


def _step(divisor: int, count: int, stride: int) -> str:
    return f"{{{divisor}, {count}, {stride}}}"


SOFTMAX = Family(
    "softmax", "Softmax over rows", "Softmax", check, WORDS, _row, _body, shares=("added",)
)  # fmt: skip
