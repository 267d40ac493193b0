"""`UpdatesCall`: updates of many tensors by one rule, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from relay_wgrad.dtypes import FLOATS

from ..codegen.kernel_names import Words, known
from ..codegen.templates import constants
from ..decision import YES, Decision, no

COUNT = "count"
SLOTS = {COUNT: 0, "sgd": 0, "momentum": 1, "adam": 2}
"""Rules, and how many tensors of state they keep for each parameter."""
NUMBERS = ("weight_decay", "momentum", "beta1", "beta2", "eps", "decoupled", "clip")
DTYPES = FLOATS[2:]  # parameters are no halves
WORDS: Words = {"rule": SLOTS, "dtype": DTYPES}
LIMIT = 1 << 30  # elements of a tensor
TILE = constants("updates", "updates_call.h")["kRelayWgradTile"]
"""Elements of one tensor that a block of threads takes."""


@dataclass(frozen=True)
class UpdatesCall:
    """All tensors of an update, or of a count, of one dtype.

    rule : of `SLOTS`.
    numbers : the rule's, in `NUMBERS`' order; a number that it has not is 0.
        `decoupled`: weight decay takes its part of a parameter, not of its gradient; `clip`: the
        largest value of a gradient, 0 for any.
    counts : elements of each parameter.
    undecayed : the places of parameters without weight decay.
    statistics : elements of each running statistic, which becomes its new value.

    operands of an update: parameters, gradients, state by slots, count of updates (int64)[, Adam's
    two products], statistics, new statistics, whether to update, whether anything moves (bool), the
    learning rate and what gradients are multiplied by
        -> count of updates[, products]; the others are written over
    operands of a count: tensors -> a count for each block (int32), how many in all (float64)
    """

    symbol: str
    rule: str
    dtype: str
    counts: tuple[int, ...]
    statistics: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    undecayed: tuple[int, ...] = ()

    @property
    def scalars(self) -> int:
        """Of the state: the count of updates, Adam's two products of betas."""
        return 3 if self.rule == "adam" else 1

    @property
    def blocks(self) -> int:
        """Of threads, of all launches."""
        return sum(-(-count // TILE) for count in self.counts)


def numbers_of(given: Mapping[str, float]) -> tuple[float, ...]:
    """A rule's numbers by name as `UpdatesCall` has them."""
    return tuple(float(given.get(name, 0.0)) for name in NUMBERS)


def check(call: UpdatesCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    if any(not 0 <= place < len(call.counts) for place in call.undecayed):
        return no(f"places {call.undecayed} of {len(call.counts)} parameters")
    for count in (*call.counts, *call.statistics):
        if not 0 < count < LIMIT:
            return no(f"a tensor of {count} elements: from 1 to {LIMIT - 1}")
    if call.rule != COUNT and not all(map(math.isfinite, call.numbers)):
        return no(f"numbers {call.numbers}: not finite")
    return YES if call.counts else no("no tensor")
