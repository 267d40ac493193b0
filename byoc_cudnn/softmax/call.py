"""`SoftmaxCall`: softmax along rows of scores that are scaled and masked first, or its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from relay_wgrad.dtypes import MIXED

from ..codegen.kernel_names import Words, known
from ..codegen.templates import constants
from ..decision import YES, Decision, no

DIRECTIONS = ("forward", "backward")
WORDS: Words = {"direction": DIRECTIONS, "source": MIXED, "dtype": MIXED}
MASKS, STEPS = (constants("", "added_call.h")[n] for n in ("kMasks", "kAxes"))
"""Tensors that one call adds, and steps of each."""
LIMIT = 1 << 30  # columns
PACK = 16  # bytes
_MOST = (1 << 31) - 1  # rows of a call


@dataclass(frozen=True)
class Added:
    """A tensor that is added to the scaled scores; of a row it has as many elements.

    steps : (divisor, count, stride) of each axis that is not repeated: row r has its row at the sum
        of r / divisor % count * stride, in elements; a count of 0 stands for however many.
    extent : its elements; with a count of 0 the least that it must have.
    """

    dtype: str
    steps: tuple[tuple[int, int, int], ...]
    extent: int


@dataclass(frozen=True)
class SoftmaxCall:
    """Rows of `columns` elements; sums are float32.

    forward: scores, what is added... -> weights
        weights = softmax(scores scale + what is added), rounded once
    backward: the weights' gradient, weights -> the scores' gradient[, the softmax's]
        inner = weights (gradient - sum(gradient weights) / sum(weights)),
        results = inner scale[, inner in float32].  The quotient takes the rounding of weights out.

    A tensor's rows may be longer than `columns` in memory, by its last size.  What lies behind them
    is not looked at, and of weights and of the scores' gradient it is 0.

    source : the dtype of scores, or of the weights' gradient.
    dtype : of weights, and of the scores' gradient, which are the source's in a gradient.
    wide : whether there is that second gradient.
    """

    symbol: str
    direction: str
    source: str
    dtype: str
    columns: int
    scale: float = 1.0
    added: tuple[Added, ...] = ()
    wide: bool = False

    @property
    def problem(self) -> str:
        """In a line, for people."""
        more = f" added={len(self.added)}" if self.added else ""
        return f"softmax {self.direction} columns={self.columns} {self.source}/{self.dtype}{more}"


def check(call: SoftmaxCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    backward = call.direction == "backward"
    if call.source != call.dtype and (backward or "float32" not in (call.source, call.dtype)):
        return no(f"{call.direction} of {call.source} in {call.dtype}")
    if not 0 < call.columns < LIMIT:
        return no(f"{call.columns} columns: from 1 to {LIMIT - 1}")
    if not math.isfinite(call.scale):
        return no(f"scale {call.scale}: not finite")
    if (call.added and backward) or (call.wide and not backward):
        return no("what is added is of forward calls, a second result of backward ones")
    return check_added(call.added)


def check_added(added: Sequence[Added]) -> Decision:
    """Whether kernels have steps for what is added."""
    if len(added) > MASKS:
        return no(f"{len(added)} tensors are added; at most {MASKS}")
    for one in added:
        if one.dtype not in MIXED:
            return no(f"what is added is {one.dtype}")
        if len(one.steps) > STEPS:
            return no(f"what is added has rows of {len(one.steps)} axes; at most {STEPS}")
        if any(not 0 < d <= _MOST or not 0 <= n <= _MOST or s < 0 for d, n, s in one.steps):
            return no(f"steps {one.steps}: divisors from 1, the others from 0, to {_MOST}")
    return YES


def padded(columns: int, dtype: str) -> int:
    """Elements of a row in memory that is whole packs."""
    each = PACK // (4 if dtype == "float32" else 2)
    return -(-columns // each) * each
