"""`StandardizedCall`: the standardization of many weights, or its gradients, in one launch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from relay_wgrad.dtypes import MIXED

from ..codegen.kernel_names import Words, known
from ..decision import YES, Decision, no

DTYPES = MIXED
DIRECTIONS = ("forward", "backward")
WORDS: Words = {"direction": DIRECTIONS, "dtype": DTYPES}
LIMIT = 1 << 30  # elements of a weight


@dataclass(frozen=True)
class Weight:
    """One weight: `filters` rows of (channels, taps), each with statistics of its own.

    What is made of it has rows of (taps, channels); taps are 1 where nothing is turned.  With
    `gained` there is a gain, a number for each filter, and `factor` is multiplied to it.
    """

    filters: int
    channels: int
    taps: int
    factor: float = 1.0
    gained: bool = True

    @property
    def row(self) -> int:
        """Elements of a filter."""
        return self.channels * self.taps


@dataclass(frozen=True)
class StandardizedCall:
    """All weights of a call, which are float32; what is made of them has `dtype`, as its gradient.

    forward: each weight, each gain -> each result, then each weight's statistics
    backward: each result's gradient, each weight, each gain, each weight's statistics
        -> each weight's gradient, then each gain's
    With n elements in a filter, in float32:
      mean = sum(w) / n,  rstd = 1 / sqrt(sum((w - mean)^2) / n + epsilon),
      xhat = (w - mean) rstd,  result = xhat (factor gain), rounded once,
      dw = factor gain rstd (d - sum(d) / n - xhat sum(d xhat) / n),  dgain = factor sum(d xhat).
    statistics are (2, filters) : means, then rstd.
    """

    symbol: str
    direction: str
    dtype: str
    weights: tuple[Weight, ...]
    epsilon: float = 1e-5


def check(call: StandardizedCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    for one in call.weights:
        if not 0 < one.filters * one.row < LIMIT:
            return no(f"{one}: from 1 to {LIMIT - 1} elements")
        if not math.isfinite(one.factor):
            return no(f"{one}: a factor that is not finite")
    if not (math.isfinite(call.epsilon) and call.epsilon >= 0):
        return no(f"epsilon {call.epsilon}: not finite, or below zero")
    return YES if call.weights else no("no weight")
