"""The C++ of updates, as `codegen.direct` has it: a kernel for each rule and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from ..codegen.direct import ELEMENTS, Family
from .call import COUNT, NUMBERS, SLOTS, WORDS, UpdatesCall, check


def _body(rule: str, dtype: str, tail: str) -> tuple[Sequence[str], str] | None:
    element = ELEMENTS[dtype][1]
    named = f", k{rule.capitalize()}"  # of `Rule` in the template
    function = f"count_all<{element}>" if rule == COUNT else f"update_all<{element}{named}>"
    return None if tail else ([UPDATES.template("updates_device.h")], function)


def one_minus(beta: float) -> float:
    """Of the number as it is written: what TVM's optimizers take."""
    return float(1 - Decimal(str(beta)))


def numbers(call: UpdatesCall) -> tuple[float, ...]:
    """The numbers that a kernel takes: `RelayWgradNumbers`."""
    by_name = dict(zip(NUMBERS, call.numbers or (0.0,) * len(NUMBERS), strict=True))
    return (*by_name.values(), one_minus(by_name["beta1"]), one_minus(by_name["beta2"]))


def _row(call: UpdatesCall) -> tuple[str, str]:
    counts, statistics, undecayed = (
        ", ".join(map(str, values)) for values in (call.counts, call.statistics, call.undecayed)
    )
    told = ", ".join(map(repr, numbers(call)))
    element, counting = ELEMENTS[call.dtype][0], str(call.rule == COUNT).lower()
    return f"{call.rule} of {len(call.counts)} tensors {call.dtype}", (
        f"{element}, {counting}, {SLOTS[call.rule]}, {call.scalars},\n     {{{told}}},\n"
        f"     {{{counts}}},\n     {{{statistics}}},\n     {{{undecayed}}}"
    )


UPDATES = Family(
    "updates", "Updates of parameters", "Updates", check, WORDS, _row, _body
)  # fmt: skip
