"""Which taps meet which positions along an axis, in fprop and in dgrad.

Along one axis, with stride t, dilation d, padding b before:

    fprop:  y[a] += x[a*t + r*d - b] * w[r]
    dgrad:  x[h] += y[p] * w[r]          where p*t + r*d - b = h

For dgrad write h = a*t + f with the phase f in [0, t).  With g = gcd(t, d) a tap r meets this
phase if (f + b - r*d) % t == 0, so r = r0 + j*(t/g) for one r0, provided that g divides f + b;
and then p = a + (f + b - r0*d)/t - j*(d/g): again a convolution, of stride 1, over a few taps.
Taps are taken, and weights stored, from the last to the first: then p ascends as in fprop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm.tirx.script import builder as T

from ...quotient import quotient
from .loops import Expr, bind, int64


@dataclass(frozen=True)
class Taps:
    """The taps of one phase: `count` of them, the j-th being tap `first` + j * `step`, at
    position a * Axis.scale + `offset` + j * `reach` for output a.  In dgrad taps count from the
    last one back: `first` 0 is tap R - 1."""

    count: Expr
    first: Expr
    step: int
    offset: Expr
    reach: int

    def as_terms(self, reduced: int, pixel_step: Expr) -> tuple[int, Expr]:
        """(terms that follow each other, steps over taps) of a sum over a row of taps.

        Where taps of a row follow each other in both operands they are as if they were channels.
        """
        follow = self.reach == self.step == 1 and isinstance(self.count, int)
        if follow and isinstance(pixel_step, int) and pixel_step == reduced:
            return reduced * self.count, 1
        return reduced, self.count


@dataclass(frozen=True)
class Axis:
    """One spatial axis of fprop or dgrad."""

    dgrad: bool
    size: int  # of the operand
    out: int  # of the result
    kernel: int
    stride: int
    dilation: int
    before: int

    @property
    def phases(self) -> int:
        return self.stride if self.dgrad else 1

    @property
    def scale(self) -> int:
        return 1 if self.dgrad else self.stride

    @property
    def count(self) -> int:
        """Outputs per phase; some phases may have one less."""
        return -(-self.out // self.phases)

    def taps(self, phase: Expr) -> Taps:
        if not self.dgrad:
            return Taps(self.kernel, 0, 1, -self.before, self.dilation)
        g = math.gcd(self.stride, self.dilation)
        step, reach = self.stride // g, self.dilation // g
        shifted = phase + self.before
        first = quotient(shifted, g) * pow(reach, -1, step) % step if step > 1 else 0
        count = quotient(self.kernel - first + step - 1, step)  # first < step
        if step > 1:
            count = count if isinstance(count, int) else T.max(count, 0)
        count = max(count, 0) if isinstance(count, int) else count
        if g > 1:
            hit = shifted % g == 0
            if isinstance(hit, bool):
                count = count if hit else 0
            else:
                count = T.if_then_else(hit, int64(count), int64(0))
        least = -(step - 1) * self.dilation
        offset = quotient(shifted - first * self.dilation, self.stride, least)
        # In reverse, so that positions ascend; the weights are stored in reverse as well.
        past = count - 1
        return Taps(
            count, self.kernel - 1 - first - past * step, step, offset - past * reach, reach
        )

    def place(self, a: Expr, phase: Expr) -> tuple[Expr, Expr]:
        """Where output a of a phase is, and whether it exists: not every phase has as many."""
        at = a * self.phases + phase
        return at, (at < self.out if self.out % self.phases else True)

    @property
    def ends(self) -> tuple[int, int]:
        """The first position that output 0 of any phase reads, and the last one."""
        ends = (-self.before, (self.kernel - 1) * self.dilation - self.before)
        if self.dgrad:
            # The phase that tap r meets is (r*d - b) % t, so the offset there is -((r*d - b) // t).
            ends = (-(ends[1] // self.stride), -(ends[0] // self.stride))
        return ends

    def border(self) -> tuple[int, int]:
        """Zeros needed before and after the operand."""
        first, last = self.ends
        last += (self.count - 1) * self.scale
        return max(0, -first), max(0, last - self.size + 1)

    @property
    def edges(self) -> tuple[int, int]:
        """Outputs of a phase, at its beginning and at its end, that may lack a tap."""
        before, after = self.border()
        return min(self.count, -(-before // self.scale)), min(self.count, -(-after // self.scale))

    def met(self, taps: Taps, output: Expr, tap: Expr) -> tuple[Expr, Expr]:
        """Whether an output's tap is on the operand, and how far it is from the next position that
        is."""
        at = bind(output * self.scale + taps.offset + tap * taps.reach)
        nearest = T.max(T.min(int64(at), int64(self.size - 1)), int64(0))
        return bind(nearest == at), bind(nearest - at)

    def reached(self, taps: Taps, start: Expr, outputs: int = 1) -> tuple[Expr, Expr]:
        """The first tap that is on the operand, and the last but one, for one of the outputs of a
        phase from `start` on."""
        if self.border() == (0, 0):
            return 0, taps.count
        position = bind(start * self.scale + taps.offset)
        # No less, in any phase: as far back as all taps reach, and a tap's rest.
        least = -(self.before + (self.kernel + 1) * self.dilation + 1)
        low = -quotient(position + (outputs - 1) * self.scale, taps.reach, least)
        high = 1 - quotient(position - self.size + taps.reach, taps.reach, least - self.size)
        if isinstance(position, int) and isinstance(taps.count, int):
            first = max(low, 0)
            return first, max(min(high, taps.count), first)
        first = bind(T.max(int64(low), 0))
        return first, bind(T.max(T.min(int64(high), int64(taps.count)), first))

    def rows_of_taps(self, outputs: int) -> int:
        """Meetings of a row of outputs and one of taps, in tiles of so many rows; for one phase."""
        total = 0
        for start in range(0, self.count, outputs):
            size = min(outputs, self.count - start)
            first, last = self.reached(self.taps(0), start, size)
            total += size * (last - first)
        return total
