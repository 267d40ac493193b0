"""wgrad of depthwise convolutions: sums over all pixels of a part of the images in registers.

Of a volume they are the sums of its planes, each tap in depth with the planes that it reads.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvProblem

from ...quotient import share
from ..emitters.loops import (
    Expr,
    bind,
    conjunction,
    digits,
    local,
    parallel,
    serial,
    vector,
    when,
    zero,
)
from ..emitters.memory import Batch, Image, Panels
from ..emitters.partial_sums import splits_for
from ..machine import Machine


class Sums:
    """The core: a task has a vector of channels and as many taps as there are registers for."""

    def __init__(
        self, problem: ConvProblem, m: Machine, accum: str, panels: Panels, lanes: int
    ) -> None:
        self.problem, self.accum, self.panels, self.lanes = problem, accum, panels, lanes
        # Taps in registers: all of them, or a row of them, or one.
        most = m.registers - 4
        self.tall = problem.r if problem.r * problem.s <= most else 1
        self.wide = problem.s if problem.s <= most else 1
        self.taps = [(i, j) for i in range(self.tall) for j in range(self.wide)]
        self.strides, self.dilation = problem.strides[-2:], problem.dilation[-2:]
        self.before = problem.padding[problem.rank - 2 : problem.rank]
        self.deep: int = problem.t if problem.rank == 3 else 1
        self.planes: int = problem.z if problem.rank == 3 else 1
        rows, columns = problem.r // self.tall, problem.s // self.wide
        self.grid = (panels.groups, panels.block // lanes, self.deep, rows, columns)

    def splits(self, images: Expr, cores: int) -> int:
        """Parts of the sum, for even work on all cores."""
        return splits_for(math.prod(self.grid), cores, images * self.planes * self.problem.p)

    def write(self, batch: Batch, parts: Expr, splits: int) -> None:
        problem, panels, lanes = self.problem, self.panels, self.lanes
        with (
            batch.each() as (number, images, (y, x)),
            parallel(splits, *self.grid) as (part, filter_, chunk, t, r, s),
        ):
            lines = images * self.planes * problem.p
            r, s = r * self.tall, s * self.wide
            acc = local("acc", len(self.taps) * lanes, self.accum)
            registers = [vector(i * lanes, lanes) for i in range(len(self.taps))]
            for register in registers:
                T.buffer_store(acc, zero(self.accum, lanes), [register])
            begin, end = share(part, lines, splits)
            with serial(end, begin) as line:
                n, z, p = digits(line, (images, self.planes, problem.p))
                read, exists = self._plane(z, t)
                top = bind(p * self.strides[0] + r * self.dilation[0] - self.before[0])
                left = bind(s * self.dilation[1] - self.before[1])
                with when(exists):
                    grad = bind(y.at(n, p, 0, filter_, z) + chunk * lanes)
                    data = bind(x.at(n, top, left, 0, read) + chunk * lanes)
                    _Line(self, acc, registers, (y, x), (grad, data), (top, left)).write(p)
            for (i, j), register in zip(self.taps, registers, strict=True):
                at = part * panels.size + panels.at(filter_, 0, r + i, s + j) + t * panels.t_step
                place = vector(at + chunk * lanes, lanes)
                total = acc[register]
                if not batch.is_whole:
                    before = T.if_then_else(number == 0, zero(self.accum, lanes), parts[place])
                    total = before + total
                T.buffer_store(parts, total, [place])

    def _plane(self, z: Expr, t: Expr) -> tuple[Expr, Expr]:
        """The data's plane that a tap in depth reads, and whether it is there."""
        problem = self.problem
        if problem.rank == 2:
            return 0, True
        read = bind(z * problem.strides[0] + t * problem.dilation[0] - problem.padding[0])
        return read, tirx.all(read >= 0, read < problem.d)


class _Line:
    """The products of one row of the gradient."""

    def __init__(
        self, core: Sums, acc: Expr, registers: list[Expr], images: tuple[Image, Image],
        first: tuple[Expr, Expr], corner: tuple[Expr, Expr],
    ) -> None:  # fmt: skip
        self.core, self.acc, self.registers = core, acc, registers
        self.y, self.x = images
        self.grad, self.data = first
        self.top, self.left = corner  # row and column of the first tap's data

    def write(self, p: Expr) -> None:
        problem = self.core.problem
        low, high = _always_inside(problem, 1)
        whole = low == 0 and high == problem.q

        def interior() -> None:
            self._pixels(0, low, False, True)
            self._pixels(low, high, False, False)
            self._pixels(high, problem.q, False, True)

        low_p, high_p = _always_inside(problem, 0)
        if low_p == 0 and high_p == problem.p:
            interior()
        else:
            with T.If(tirx.all(p >= low_p, p < high_p)):
                with T.Then():
                    interior()
                with T.Else():
                    self._pixels(0, problem.q, True, not whole)

    def _pixels(self, first: int, last: int, rows: bool, columns: bool) -> None:
        """The sums over some columns, asking for taps off the data if so said."""
        if first >= last:
            return
        problem, x, y, lanes = self.core.problem, self.x, self.y, self.core.lanes
        with serial(last, first) as q:
            value = y.buffer[vector(self.grad + q * y.w_step, lanes)]
            for (i, j), register in zip(self.core.taps, self.registers, strict=True):
                step_h, step_w = i * self.core.dilation[0], j * self.core.dilation[1]
                step = step_h * x.h_step + (step_w + q * self.core.strides[1]) * x.w_step
                term = x.buffer[vector(self.data + step, lanes)]
                inside: Expr = True
                if rows:
                    inside = conjunction(self.top + step_h >= 0, self.top + step_h < problem.h)
                if columns:
                    w = self.left + step_w + q * self.core.strides[1]
                    inside = conjunction(inside, conjunction(w >= 0, w < problem.w))
                if inside is not True:
                    term = T.if_then_else(inside, term, zero(self.core.accum, lanes))
                T.buffer_store(self.acc, self.acc[register] + term * value, [register])


def _always_inside(problem: ConvProblem, axis: int) -> tuple[int, int]:
    """The range of the gradient's rows or columns whose taps are all on the data."""
    size, out = ((problem.h, problem.p), (problem.w, problem.q))[axis]
    kernel, at = (problem.r, problem.s)[axis], axis + problem.rank - 2
    stride, before = problem.strides[at], problem.padding[at]
    reach = (kernel - 1) * problem.dilation[at]
    low = min(-(-before // stride), out)
    return low, max(low, min(out, (size - 1 + before - reach) // stride + 1))
