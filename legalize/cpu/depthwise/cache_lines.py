"""wgrad of depthwise convolutions by blocks of pixels, all channels of each.

With a sum over all pixels per vector of channels, each line would be fetched for every vector that
shares it, and one that a vector fills comes from far away, a pixel's channels apart from the last.
Here a task takes some channels of some rows of the gradient, and vectors follow each other, as in
memory, in each block of pixels.  The sums are in memory, and in registers for a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvProblem

from ...quotient import share
from ..emitters.loops import (
    Expr,
    bind,
    ceildiv,
    int64,
    local,
    parallel,
    prefetch,
    serial,
    vector,
    when,
    zero,
)
from ..emitters.memory import Batch, Image, Panels
from ..emitters.partial_sums import splits_for
from ..machine import Machine

# Pixels of the gradient in a block, more or less, and columns at least: then the loads and stores
# of the sums matter little.
_PIXELS, _COLUMNS = 28, 7


# Where a vector is a line: taps of which the other form has registers for all at once, and level-2
# caches from which on tensors come from far away.  Measured.
_FEW_TAPS, _CACHES = 9, 4
_TASK = 0.5  # what it takes to begin a task, in lines of a unit; rough


def pays(problem: ConvProblem, m: Machine) -> bool:
    """Whether lines would leave the level-2 cache before the next vector needs them; where a vector
    is a line, whether they come from beyond it."""
    if problem.s > m.registers - 4:
        return False
    if m.vector_bytes >= m.line_bytes:
        many = problem.r * problem.s > _FEW_TAPS or problem.strides != (1, 1)
        return bool(many or not problem.is_static or problem.bytes > _CACHES * m.l2_bytes)
    pixels = problem.n * (problem.h * problem.w + problem.p * problem.q)
    return not isinstance(pixels, int) or pixels * m.line_bytes > m.l2_bytes // 2


@dataclass(frozen=True)
class Run:
    """Columns [first, last) of the gradient whose taps on the data are the same."""

    first: int
    last: int
    taps: tuple[int, ...]


def _runs(problem: ConvProblem) -> list[Run]:
    runs: list[Run] = []
    for q in range(problem.q):
        start = q * problem.strides[1] - problem.padding[1]
        columns = (start + s * problem.dilation[1] for s in range(problem.s))
        taps = tuple(s for s, w in enumerate(columns) if 0 <= w < problem.w)
        first = runs.pop().first if runs and runs[-1].taps == taps else q
        runs.append(Run(first, q + 1, taps))
    return [run for run in runs if run.taps]


@dataclass(frozen=True)
class _Block:
    """Pixels that are summed in registers: `rows`, and of each the columns of `runs`, or one of
    the `parts` of a single run."""

    rows: int
    runs: list[Run]
    parts: int

    @property
    def taps(self) -> list[int]:
        return sorted({s for run in self.runs for s in run.taps})


def _blocks(problem: ConvProblem, m: Machine, bytes_: int) -> list[_Block]:
    """Blocks that cover a row or more of the gradient, small enough for a level-1 cache."""
    step = math.gcd(problem.c * bytes_, m.l1_way_bytes)
    places = (m.l1_ways - 1) * m.l1_way_bytes // max(step, m.line_bytes)

    def fits(rows: int, columns: int) -> bool:
        counts = zip((rows, columns), (problem.r, problem.s), (0, 1), strict=True)
        high, wide = (
            (count - 1) * problem.strides[i] + (taps - 1) * problem.dilation[i] + 1
            for count, taps, i in counts
        )
        return rows * columns + high * wide <= places

    runs = _runs(problem)
    if problem.q <= _PIXELS:
        rows = max(1, min(problem.p, _PIXELS // problem.q))
        while rows > 1 and not fits(rows, problem.q):
            rows -= 1
        return [_Block(ceildiv(problem.p, ceildiv(problem.p, rows)), runs, 1)] if runs else []
    columns = _PIXELS
    while columns >= 2 * _COLUMNS and not fits(1, columns):
        columns //= 2
    longest = max(runs, key=lambda run: run.last - run.first, default=None)
    edges = [run for run in runs if run is not longest]
    blocks = [_Block(1, edges, 1)] if edges else []
    if longest:
        blocks.append(_Block(1, [longest], ceildiv(longest.last - longest.first, columns)))
    return blocks


class Lines:
    """The core: a task adds up some lines of channels, over some rows of the gradient."""

    def __init__(
        self, problem: ConvProblem, m: Machine, accum: str, panels: Panels, lanes: int,
        from_memory: bool,
    ) -> None:  # fmt: skip
        self.problem, self.accum, self.panels, self.lanes = problem, accum, panels, lanes
        self.from_memory = from_memory  # lines are asked for in time
        bytes_ = DTYPE_BYTES[accum]
        self.tall = problem.r if problem.r * problem.s <= m.registers - 4 else 1
        self.chunks = panels.block // lanes
        self.sharing = min(max(1, m.line(accum) // lanes), self.chunks)
        self.blocks = _blocks(problem, m, bytes_)
        self.rows = self.blocks[0].rows if self.blocks else problem.p
        self.units_per_image = ceildiv(problem.p, self.rows)
        # Channels of a task: a quarter of a level-1 cache is for their sums.
        self.lines = ceildiv(self.chunks, self.sharing)
        sums = panels.size * bytes_
        self.groups = min(ceildiv(4 * sums, m.l1_bytes), self.lines)

    def splits(self, images: Expr, cores: int) -> int:
        """Parts of the sum, for even work on all cores; where pixels are too few for as many, tasks
        have fewer channels."""
        units = images * self.units_per_image
        if isinstance(units, int):

            def work(groups: int) -> float:  # of the core that has most to do
                parts = splits_for(groups, cores, units)
                each = ceildiv(self.lines, groups) + _TASK
                return ceildiv(groups * parts, cores) * ceildiv(units, parts) * each

            self.groups = min(range(self.groups, self.lines + 1), key=work)
        return splits_for(self.groups, cores, units)

    def write(self, batch: Batch, parts: Expr, splits: int) -> None:
        lanes = self.lanes
        with parallel(splits * self.panels.size // lanes) as (i,):
            T.buffer_store(parts, zero(self.accum, lanes), [vector(i * lanes, lanes)])
        with batch.each() as (_, images, (y, x)):
            self._images(y, x, images, parts, splits)

    def _images(self, y: Image, x: Image, images: Expr, parts: Expr, splits: int) -> None:
        panels, tall = self.panels, self.tall
        units = images * self.units_per_image
        with (
            parallel(self.groups, splits) as (group, part),
            serial(*share(part, units, splits)[::-1]) as unit,
        ):
            n = bind(unit // self.units_per_image)
            p = bind(unit % self.units_per_image * self.rows)
            first_line, last_line = map(bind, share(group, self.lines, self.groups))
            for block in self.blocks:
                with (
                    serial(block.parts) as cut,
                    serial(panels.groups) as filter_,
                    serial(last_line, first_line) as line,
                    serial(self.problem.r // tall) as r,
                ):
                    for i in range(self.sharing):
                        chunk = line * self.sharing + i
                        exists = chunk < self.chunks if i and self.chunks % self.sharing else True
                        with when(exists):
                            first = bind(chunk * self.lanes)
                            sums = part * panels.size + panels.at(filter_, 0, r * tall, 0) + first
                            grad = bind(y.at(n, p, 0, filter_) + first)
                            data = bind(x.at(n, 0, 0, 0) + first)
                            _Products(self, block, (y, x), (grad, data), (p, r * tall)).write(
                                parts, bind(sums), cut, self.from_memory and i == 0
                            )


class _Products:
    """The products of one block of pixels and one vector of channels."""

    def __init__(
        self, core: Lines, block: _Block, images: tuple[Image, Image], first: tuple[Expr, Expr],
        place: tuple[Expr, Expr],
    ) -> None:  # fmt: skip
        self.core, self.block = core, block
        self.y, self.x = images
        self.grad, self.data = first  # of row p, and of row 0 of the image
        self.p, self.r = place  # first row of the gradient, and of the taps
        self.acc = local("acc", core.tall * core.problem.s * core.lanes, core.accum)

    def _at(self, i: int, s: int) -> Expr:
        return vector((i * self.core.problem.s + s) * self.core.lanes, self.core.lanes)

    def write(self, parts: Expr, sums: Expr, cut: Expr, ask: bool) -> None:
        core, problem, panels = self.core, self.core.problem, self.core.panels
        taps = [(i, s) for i in range(core.tall) for s in self.block.taps]
        places = {
            (i, s): vector(sums + i * panels.r_step + s * panels.s_step, core.lanes)
            for i, s in taps
        }
        for tap in taps:
            T.buffer_store(self.acc, parts[places[tap]], [self._at(*tap)])
        rows: Expr = self.block.rows
        if problem.p % rows:
            rows = T.min(int64(rows), problem.p - self.p)
        with serial(rows) as row:
            top = (self.p + row) * problem.strides[0] + self.r * problem.dilation[0]
            top = bind(top - problem.padding[0])
            inside = []
            for i in range(core.tall):
                h = top + i * problem.dilation[0]
                inside.append(tirx.all(h >= 0, h < problem.h))
            with T.If(tirx.all(*inside)):
                with T.Then():
                    self._row(row, top, range(core.tall), cut, ask)
                with T.Else():
                    for i, exists in enumerate(inside):
                        with when(exists):
                            self._row(row, top, range(i, i + 1), cut, False)
        for tap in taps:
            T.buffer_store(parts, self.acc[self._at(*tap)], [places[tap]])

    def _row(self, row: Expr, top: Expr, taps: range, cut: Expr, ask: bool) -> None:
        """A row of the gradient with rows of taps that are on the data."""
        core, problem, x, y = self.core, self.core.problem, self.x, self.y
        grad, data = bind(self.grad + row * y.h_step), bind(self.data + top * x.h_step)
        for run in self.block.runs:
            start: Expr = run.first
            stop: Expr = run.last
            if self.block.parts > 1:
                columns = ceildiv(run.last - run.first, self.block.parts)
                start = bind(run.first + cut * columns)
                stop = bind(T.min(start + columns, int64(run.last)))
            with serial(stop, start) as q:
                there = bind(grad + q * y.w_step)
                left = q * problem.strides[1] - problem.padding[1]
                corner = bind(data + left * x.w_step)
                if ask:
                    self._ask(there, corner)
                value = bind(y.buffer[vector(there, core.lanes)])
                for i in taps:
                    for s in run.taps:
                        step = i * problem.dilation[0] * x.h_step
                        step = corner + step + s * problem.dilation[1] * x.w_step
                        term = x.buffer[vector(step, core.lanes)]
                        total = self.acc[self._at(i, s)] + term * value
                        T.buffer_store(self.acc, total, [self._at(i, s)])

    def _ask(self, grad: Expr, data: Expr) -> None:
        """Asks for the lines that the same pixel of the next block of rows needs first."""
        problem, x, y, rows = self.core.problem, self.x, self.y, self.block.rows
        prefetch(y.buffer, grad + rows * y.h_step)
        reach = self.core.tall * problem.dilation[0] + (rows - 1) * problem.strides[0]
        for i in range(problem.strides[0]):
            for j in range(problem.strides[1]):
                prefetch(x.buffer, data + (reach + i) * x.h_step + j * x.w_step)
