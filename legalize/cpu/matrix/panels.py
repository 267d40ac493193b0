"""Weights as tiles read them: pairs of terms of 16 sums, which follow each other.

[group][block of 16 sums][row of taps][pair of terms][sum][term of the pair], where the terms are
(column of taps, channel that is summed over).  Sums and channels that do not exist are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from ..emitters.axes import Taps
from ..emitters.copies import transposed
from ..emitters.loops import Expr, bind, ceildiv, int64, parallel, serial, vector, view, when
from ..emitters.memory import Memory
from .tiles import PAIR, SUMS

BITS, PAIR_BITS = "uint16", "uint32"  # of a number, of two
INTERLEAVED = [i // 2 + SUMS * (i % 2) for i in range(PAIR)]


@dataclass(frozen=True)
class Panels:
    """Steps of packed weights in memory, in elements."""

    groups: int
    sums: int  # of a group
    reduced: int  # channels of a tap that are summed over, with those that fill up
    rows: int  # of taps
    columns: int

    @property
    def blocks(self) -> int:
        return ceildiv(self.sums, SUMS)

    @property
    def s_step(self) -> int:
        return self.reduced * SUMS

    @property
    def r_step(self) -> int:
        return self.s_step * self.columns

    @property
    def block_step(self) -> int:
        return self.r_step * self.rows

    @property
    def size(self) -> int:
        return self.groups * self.blocks * self.block_step

    def step(self, taps: tuple[Taps, Taps], r: Expr, s: Expr) -> Expr:
        """From the place of a phase's first tap to that of its tap (r, s)."""
        return r * (taps[0].step * self.r_step) + s * (taps[1].step * self.s_step)


def pack(problem: ConvProblem, memory: Memory, panels: Panels) -> Expr:
    """Memory with the packed weights; dgrad's last tap first."""
    reverse = problem.kind is ConvKind.DGRAD
    lane, other = ("I", "O") if reverse else ("O", "I")
    target = memory.scratch.new("weight_panels", panels.size, memory.accum)
    step = memory.strides("weight")
    shape = dict(zip(problem.layout("weight"), problem.shape("weight"), strict=True))
    channels = problem.k // problem.groups if reverse else shape["I"]
    group_step = step["O"] * (problem.k // problem.groups)
    source, packed = (
        (view(buffer, BITS), view(buffer, PAIR_BITS)) for buffer in (memory.flat("weight"), target)
    )
    packing = _Packing(
        source, packed, panels, channels, step[lane], step[other],
        all(x % 2 == 0 for letter, x in step.items() if letter != other) and channels % 2 == 0,
    )  # fmt: skip
    with (
        parallel(panels.groups, panels.blocks, panels.rows) as (g, block, r),
        serial(panels.columns) as s,
    ):
        y, x = (problem.r - 1 - r, problem.s - 1 - s) if reverse else (r, s)
        here = bind(g * group_step + y * step["H"] + x * step["W"] + block * SUMS * step[lane])
        there = bind(
            (g * panels.blocks + block) * panels.block_step + r * panels.r_step + s * panels.s_step
        )
        packing.block(here, there, block)
    return target


@dataclass(frozen=True)
class _Packing:
    """What is packed of one tap and one block of sums."""

    source: tuple[Expr, Expr]  # the same memory, by numbers and by pairs
    target: tuple[Expr, Expr]
    panels: Panels
    channels: int
    lane_step: int
    step: int  # between terms
    is_paired: bool  # pairs of the caller's terms are at places of pairs

    def block(self, here: Expr, there: Expr, number: Expr) -> None:
        lanes = self.panels.sums % SUMS
        if not lanes or self.panels.blocks > 1:
            with when(number < self.panels.blocks - 1 if lanes else True):
                self._whole(here, there)
        if lanes:
            with when(number == self.panels.blocks - 1 if self.panels.blocks > 1 else True):
                self._scalars(here, there, 0, self.panels.reduced // 2, lanes)

    def _whole(self, here: Expr, there: Expr) -> None:
        pairs = done = self.channels // 2
        if self.lane_step == 1:
            with serial(pairs) as j:
                first = bind(here + 2 * j * self.step)
                values = [self.source[0][vector(first + i * self.step, SUMS)] for i in (0, 1)]
                both = tirx.Shuffle([bind(x) for x in values], INTERLEAVED)
                T.buffer_store(self.target[0], both, [vector(there + j * PAIR, PAIR)])
        elif self.step == 1 and self.is_paired:
            done = pairs // SUMS * SUMS
            with serial(pairs // SUMS) as j:
                rows = [
                    bind(self.source[1][vector((here + i * self.lane_step) // 2 + j * SUMS, SUMS)])
                    for i in range(SUMS)
                ]
                for i, row in enumerate(transposed(rows)):
                    at = there // 2 + (j * SUMS + i) * SUMS
                    T.buffer_store(self.target[1], row, [vector(at, SUMS)])
        else:
            done = 0
        self._scalars(here, there, done, self.panels.reduced // 2, SUMS)

    def _scalars(self, here: Expr, there: Expr, begin: int, end: int, lanes: int) -> None:
        if begin == end:
            return
        zero = tirx.const(0, BITS)
        with serial(end, begin) as j, serial(SUMS) as lane:
            for i in (0, 1):
                at = here + lane * self.lane_step + (2 * j + i) * self.step
                exists = tirx.all(2 * j + i < self.channels, lane < lanes)
                value = T.if_then_else(exists, self.source[0][int64(at)], zero)
                T.buffer_store(self.target[0], value, [int64(there + j * PAIR + 2 * lane + i)])
