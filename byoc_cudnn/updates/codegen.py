"""The C++ of updates, as `codegen.direct` has it: a kernel for each rule and dtype."""

from __future__ import annotations

import re
from decimal import Decimal

from ..codegen.direct import ELEMENTS, Family
from .call import COUNT, DTYPES, NUMBERS, SLOTS, UpdatesCall, check

_PREFIX = "relay_wgrad_updates_"
_RULES = {COUNT: "kCount", "sgd": "kSgd", "momentum": "kMomentum", "adam": "kAdam"}
_NAME = re.compile(rf"{_PREFIX}({'|'.join(SLOTS)})_({'|'.join(DTYPES)})")


def kernel_of(call: UpdatesCall) -> str:
    """The name of the kernel that serves a call."""
    return f"{_PREFIX}{call.rule}_{call.dtype}"


def _body(name: str) -> str:
    found = _NAME.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r} is no kernel of updates")
    rule, dtype = found.groups()
    element = ELEMENTS[dtype][1]
    function = (
        f"count_all<{element}>" if rule == COUNT else f"update_all<{element}, {_RULES[rule]}>"
    )
    return UPDATES.exported(name, [UPDATES.template("updates_device.h")], function)


def one_minus(beta: float) -> float:
    """Of the number as it is written: what TVM's optimizers take."""
    return float(1 - Decimal(str(beta)))


def numbers(call: UpdatesCall) -> tuple[float, ...]:
    """The numbers that a kernel takes: `RelayWgradNumbers`."""
    by_name = dict(zip(NUMBERS, call.numbers or (0.0,) * len(NUMBERS), strict=True))
    return (*by_name.values(), one_minus(by_name["beta1"]), one_minus(by_name["beta2"]))


def _row(call: UpdatesCall) -> str:
    kernel = kernel_of(call)
    counts, statistics, undecayed = (
        ", ".join(map(str, values)) for values in (call.counts, call.statistics, call.undecayed)
    )
    told = ", ".join(map(repr, numbers(call)))
    words = f"{call.rule} of {len(call.counts)} tensors {call.dtype}"
    return (
        f'    {{"{words}", {kernel}, "{kernel}",\n'
        f"     Element::{ELEMENTS[call.dtype][0]}, {str(call.rule == COUNT).lower()},"
        f" {SLOTS[call.rule]}, {call.scalars},\n     {{{told}}},\n"
        f"     {{{counts}}},\n     {{{statistics}}},\n     {{{undecayed}}}}},"
    )


UPDATES = Family(
    "updates", "Updates of parameters", "Updates", "RelayWgradUpdatesKernel", check, _row,
    kernel_of, _body,
)  # fmt: skip
