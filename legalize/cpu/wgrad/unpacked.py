"""wgrad: dw[k, c, r, s] = sum over pixels of y[n, k, p, q] * x[n, c, p*t + r*d - b, …].

Planes of a volume are images, whose taps in depth read those before and behind: each has its own
planes that it reads, as its rows and columns.

A task owns a block of k and a chunk of c for all taps: its weights stay in the level-2 cache.  It
walks over blocks of pixels; for each tap and each few input channels the accumulators, a tile of
(input channels) x (block of k), are loaded, run over the block of pixels in registers, and are
stored.  Padding costs nothing: each tap has its own range of rows and columns.

A line of data is read for a few of its channels, and where no other tap reads it, it is gone before
the next few: without overlap of taps some tiles' channels of a block of pixels are first copied
together, tap by tap.

Where there are fewer input channels than a tile has rows, the tile's rows are pairs of a column
tap and a channel.  Where tasks are too few for the cores, the sum over pixels is split, and the
parts are added in a fixed order: results do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvProblem

from ...quotient import share
from ..emitters.loops import (  # fmt: skip
    Expr,
    bind,
    ceildiv,
    conjunction,
    int64,
    local,
    outer,
    parallel,
    serial,
    vector,
    when,
    zero,
)
from ..emitters.memory import Batch, Image, Memory, Panels
from ..emitters.partial_sums import parts_of
from ..emitters.tiles import channel_block, heights, tile_rows
from ..machine import Machine
from .pixels import Pixels, at_least, cut, reach

# Bytes of gradient in a block of pixels: about a level-1 cache.
_BLOCK_BYTES = 48 << 10
_INNER = 4  # blocks of k that share a copy of the data: more make long code, and gain little
# Cycles of a tile beyond its products, and of an element of a part's sums that is written and read
# again; bytes a cycle of what all cores share.  Rough: they only choose between cuts.
TILE, PART, SHARED = 40, 1.5, 6


def is_apart(problem: ConvProblem) -> bool:
    """Whether no element of the data is read by two taps, and none of them reads padding."""
    p = problem
    apart = all(taps <= stride for taps, stride in zip(p.taps, p.strides, strict=True))
    return apart and set(p.dilation) == {1} and not any(p.padding)


@dataclass(frozen=True)
class Row:
    """One row of a register tile: the step in the data and in the weights."""

    data: int
    weight: int


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel: operands in, core, sum of the parts, result out."""
    groups = problem.groups
    filters, channels = problem.k // groups, problem.c // groups
    vectors, lanes = channel_block(m, memory.accum, filters)
    half = m.lanes(memory.accum) // 2
    if filters % lanes and filters % half == 0 and filters // half <= 3:
        vectors, lanes = filters // half, half  # so that the gradient need not be copied
    block = vectors * lanes
    height = 8 if vectors > 1 else 16
    if m.has_few_registers:
        height = tile_rows(m, vectors)
    fold = channels * 2 <= height and -(-channels * problem.s // height) <= 8
    border = (0, 0, 0, 0)
    if fold:
        left = problem.padding[problem.rank - 1]
        last = (problem.q - 1) * problem.strides[-1] + (problem.s - 1) * problem.dilation[-1]
        border = (0, left, 0, max(0, last - left - problem.w + 1))
    batch = memory.batch(
        memory.operand("grad", groups, filters, block=block),
        memory.operand("data", groups, channels, border=border),
    )
    weight, panels = memory.panels("O", groups, filters, channels, block)
    target = _BLOCK_BYTES // (block * DTYPE_BYTES[memory.accum])
    pixels = cut(problem, batch, target)
    core = _Core(problem, m, memory.accum, pixels, panels, vectors, lanes, height, fold)
    core.write(batch, weight, memory)


class _Core:
    def __init__(
        self, problem: ConvProblem, m: Machine, accum: str, pixels: Pixels, panels: Panels,
        vectors: int, lanes: int, height: int, fold: bool,
    ) -> None:  # fmt: skip
        self.problem = problem
        self.accum = accum
        self.pixels = pixels
        self.panels = panels
        self.vectors = vectors
        self.lanes = lanes
        self.fold = fold
        self.rows = panels.reduced * problem.s if fold else panels.reduced
        self.deep = problem.t if problem.rank == 3 else 1  # taps in depth
        self.height = min(height, self.rows)
        self.tiles = ceildiv(self.rows, self.height)
        # Tiles whose data are copied together, and blocks of k that use the copy.
        self.together, self.inner = 0, 1
        bytes_ = DTYPE_BYTES[accum]
        apart = problem.rank == 2 and is_apart(problem)
        # Measured: below that the first pass leaves enough of a block in the caches for the next.
        far = problem.c * problem.strides[1] * bytes_ >= m.l1_way_bytes // 4
        if apart and far and not fold:
            self.together = max(1, m.line_bytes // (bytes_ * self.height))
            self.inner = max(
                x
                for x in range(1, _INNER + 1)
                if panels.blocks % x == 0
                and (x == 1 or x * panels.block_step * bytes_ <= m.l2_bytes // 2)
            )
        self.chunks, self.splits = self._cut(m)

    def _cut(self, m: Machine) -> tuple[int, int]:
        """(chunks of input channels, parts of the sum over pixels)"""
        bytes_ = DTYPE_BYTES[self.accum]
        blocks = self.panels.groups * (self.panels.blocks // self.inner)
        options = [x for x in range(1, self.tiles + 1) if self.tiles % x == 0]
        if self.fold:
            options = [1]
        fitting = [
            x
            for x in options
            if self.inner * self.panels.block_step * bytes_ // x <= m.l2_bytes // 2
        ] or options[-1:]  # fmt: skip
        units_n, units_p = self.pixels.units
        units = units_n * units_p if isinstance(units_n, int) else m.cores
        # Parts cost memory and a pass over it: no more of them than of pixels to sum.
        most = max(1, min(units, m.most_parts, (16 << 20) // (self.panels.size * bytes_)))

        def cycles(cut: tuple[int, int]) -> float:
            chunks, splits = cut
            rounds = m.rounds(blocks * chunks * splits)
            sums = (splits + 1) * self.panels.size * PART / m.cores if splits > 1 else 0.0
            of_units = rounds * ceildiv(units, splits) * self._unit_cycles(chunks, m)
            return of_units + sums

        return min(itertools.product(fitting, range(1, most + 1)), key=cycles)

    def _unit_cycles(self, chunks: int, m: Machine) -> float:
        """Of a task with one unit of pixels: its products, and what it reads from beyond its own
        caches.  Of each pixel of data it reads whole lines, however few the channels."""
        pixels = self.pixels.images * self.pixels.rows * self.pixels.q
        taps = self.deep * math.prod(self.problem.taps[-2:]) // (self.problem.s if self.fold else 1)
        tiles = self.inner * ceildiv(self.tiles, chunks) * taps
        products = tiles * (pixels * self.height * self.vectors / 2 + TILE)
        bytes_ = DTYPE_BYTES[self.accum]
        line = m.line(self.accum)
        channels = ceildiv(ceildiv(self.panels.reduced, chunks), line) * line
        channels *= math.prod(self.problem.strides[-2:])
        return products + pixels * (channels + self.inner * self.block) * bytes_ / SHARED

    def write(self, batch: Batch, weight: Expr, memory: Memory) -> None:
        with (
            parts_of(weight, memory, self.panels.size, self.splits, self.lanes) as parts,
            batch.each() as (number, images, tensors),
        ):
            self.pixels, (y, x) = self.pixels.of_images(images, *tensors)
            self._tasks(x, y, parts, number == 0)
        memory.move_weight(weight, self.panels, False)

    def _tasks(self, x: Image, y: Image, parts: Expr, is_first: Expr) -> None:
        """Adds the sums over some images, the first of which find no sums yet."""
        panels, splits = self.panels, self.splits
        units_n, units_p = self.pixels.units
        units = units_n * units_p
        outer = panels.blocks // self.inner
        tiles = self.tiles // self.chunks
        with parallel(splits, panels.groups, outer, self.chunks) as (i, g, b, chunk):
            b = bind(b * self.inner)
            slab = bind(i * self.panels.size + panels.at(g, b, 0, 0))
            first = bind(chunk * tiles)
            with when(is_first), serial(self.inner) as j:
                self._clear(parts, bind(slab + j * panels.block_step), first)
            begin, end = share(i, units, splits)
            with serial(end, begin) as unit:
                n, p = bind(unit // units_p), bind(unit % units_p)
                n, p = bind(n * self.pixels.images), bind(p * self.pixels.rows)
                if self.together:
                    self._packed(x, y, parts, slab, first, (n, p, g, b))
                else:
                    with serial(tiles) as t:
                        self._tiles(x, y, parts, slab, bind(first + t), (n, p, g, b))

    def _clear(self, parts: Expr, slab: Expr, first: Expr) -> None:
        """Zeros in the task's weights: its chunk of each tap."""
        block, lanes = self.panels.block, self.lanes
        taps = math.prod(self.problem.taps) // (self.problem.s if self.fold else 1)
        step = self.panels.r_step if self.fold else self.panels.s_step
        rows = self.tiles // self.chunks * self.height
        start = bind(first * self.height)
        count = rows
        if self.rows % self.height:  # the last chunk has fewer
            count = bind(T.min(int64(rows), self.rows - start)) if self.chunks > 1 else self.rows
        with serial(taps) as tap, serial(count) as row:
            at = bind(slab + tap * step + (start + row) * block)
            for v in range(self.vectors):
                T.buffer_store(parts, zero(self.accum, lanes), [vector(at + v * lanes, lanes)])

    def _packed(
        self, x: Image, y: Image, parts: Expr, slab: Expr, first: Expr,
        where: tuple[Expr, Expr, Expr, Expr],
    ) -> None:  # fmt: skip
        """All tiles of a task over one unit of pixels, some at a time copied together."""
        n, p, g, b = where
        pixels, height, lanes = self.pixels, self.height, self.lanes
        strides = self.problem.strides
        tiles, together = self.tiles // self.chunks, self.together
        step = pixels.images * pixels.rows * pixels.q * height
        panel = local("panel", together * step, self.accum)
        copied = Image(panel, 0, pixels.rows * pixels.q * height, pixels.q * height, height, 0)
        taps = serial(self.problem.r), serial(self.problem.s)
        with serial(ceildiv(tiles, together)) as number, taps[0] as r, taps[1] as s:
            start = bind(first + number * together)
            for j in range(together):
                for rows, fits in heights(self.rows, self.height, bind(start + j)):
                    exists = number * together + j < tiles if tiles % together else True
                    with when(conjunction(fits, exists)):
                        images, lines, columns = self._unit(n, p, 0, 0)
                        with serial(*images) as image, serial(*lines) as row, serial(*columns) as q:
                            at = x.at(image, row * strides[0] + r, q * strides[1] + s, g)
                            source = bind(at + (start + j) * height)
                            target = bind(copied.at(image - n, row - p, q, 0) + j * step)
                            for i in range(0, rows, lanes):
                                count = min(lanes, rows - i)
                                value = x.buffer[vector(source + i, count)]
                                T.buffer_store(panel, value, [vector(target + i, count)])
            with serial(self.inner) as k, serial(together) as t:
                exists = number * together + t < tiles if tiles % together else True
                with when(exists):
                    place = replace(copied, base=t * step)
                    tap = r * self.panels.r_step + s * self.panels.s_step
                    at = bind(slab + k * self.panels.block_step + tap)
                    self._tiles(place, y, parts, at, bind(start + t), (n, p, g, bind(b + k)))

    def _tiles(
        self, x: Image, y: Image, parts: Expr, slab: Expr, tile: Expr,
        where: tuple[Expr, Expr, Expr, Expr],
    ) -> None:  # fmt: skip
        """All taps of one tile of rows, over one unit of pixels."""
        if self.fold:
            self._folded(x, y, parts, slab, tile, where)
            return
        first = bind(tile * self.height)
        for rows, fits in heights(self.rows, self.height, tile):
            tile_rows = [Row(i, i * self.panels.block) for i in range(rows)]
            taps = (1, 1) if self.together else (self.problem.r, self.problem.s)
            deep, down, across = serial(self.deep), serial(taps[0]), serial(taps[1])
            with when(fits), deep as d, down as r, across as s:
                at = slab + r * self.panels.r_step + s * self.panels.s_step
                at = bind(at + d * self.panels.t_step + first * self.panels.block)
                self._tile(x, y, parts, at, tile_rows, (d, r, s, first), where)

    def _folded(
        self, x: Image, y: Image, parts: Expr, slab: Expr, tile: Expr,
        where: tuple[Expr, Expr, Expr, Expr],
    ) -> None:  # fmt: skip
        """As `_tiles`, with rows that are pairs of a column tap and a channel."""
        step = self.problem.dilation[-1] * x.w_step
        channels, block = self.panels.reduced, self.panels.block
        rows = [Row(i // channels * step + i % channels, i * block) for i in range(self.rows)]
        count = ceildiv(self.rows, self.height)
        height = ceildiv(self.rows, count)
        for number in range(count):
            some = rows[number * height : (number + 1) * height]
            deep, down = serial(self.deep), serial(self.problem.r)
            with T.If(tile == number), T.Then(), deep as d, down as r:
                at = bind(slab + d * self.panels.t_step + r * self.panels.r_step)
                self._tile(x, y, parts, at, some, (d, r, None, 0), where)

    @contextlib.contextmanager
    def _plane(self, image: Expr, t: Expr) -> Iterator[tuple[Expr, Expr, Expr]]:
        """The volume of an image, its plane there, and the data's plane that a tap reads, where
        there is one."""
        problem = self.problem
        if problem.rank == 2:
            yield image, 0, 0
            return
        volume, made = bind(image // problem.z), bind(image % problem.z)
        read = bind(made * problem.strides[0] + t * problem.dilation[0] - problem.padding[0])
        with when(tirx.all(read >= 0, read < problem.d)):
            yield volume, made, read

    def _unit(
        self, n: Expr, p: Expr, r: Expr, s: Expr
    ) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr], tuple[Expr, Expr]]:
        """(end, begin) of the images, rows and columns of a unit that a tap reaches."""
        pixels = self.pixels
        if pixels.total is not None:
            low_p, high_p, low_q = p, p + 1, 0
            high_q = T.min(int64(pixels.q), pixels.total - p * pixels.q)
        else:
            low_p, high_p = reach(self.problem, 0, r, self.problem.p)
            low_p, high_p = T.max(low_p, p), T.min(high_p, p + pixels.rows)
            low_q, high_q = (0, pixels.q) if s is None else reach(self.problem, 1, s, pixels.q)
        low_p, low_q = bind(low_p), bind(low_q)
        high_p, high_q = at_least(high_p, low_p), at_least(high_q, low_q)
        last = n + pixels.images
        if not isinstance(pixels.n, int) or pixels.n % pixels.images:
            last = T.min(last, int64(pixels.n))
        return (last, n), (high_p, low_p), (high_q, low_q)

    def _tile(
        self, x: Image, y: Image, parts: Expr, at: Expr, rows: list[Row],
        tap: tuple[Expr, Expr, Expr, Expr], where: tuple[Expr, Expr, Expr, Expr],
    ) -> None:  # fmt: skip
        """One tile of accumulators over one unit of pixels."""
        problem, lanes, accum = self.problem, self.lanes, self.accum
        n, p, g, b = where
        t, r, s, first = tap
        acc = local("acc", len(rows) * self.block, accum)

        def each() -> list[tuple[Expr, Expr]]:
            return [
                (
                    vector(i * self.block + v * lanes, lanes),
                    vector(at + row.weight + v * lanes, lanes),
                )
                for i, row in enumerate(rows)
                for v in range(self.vectors)
            ]

        for register, memory in each():
            T.buffer_store(acc, parts[memory], [register])
        images, lines, columns = self._unit(n, p, r, s)
        strides, dilation = problem.strides[-2:], problem.dilation[-2:]
        before = problem.padding[problem.rank - 2 : problem.rank]
        shift_h = r * dilation[0] - before[0]
        shift_w = -before[1] if s is None else s * dilation[1] - before[1]
        step = self.height if self.together else strides[1] * x.w_step
        with serial(*images) as image, self._plane(image, t) as plane, serial(*lines) as row:
            volume, made, read = plane
            grad = bind(y.at(volume, row, 0, g, made) + b * self.block)
            if self.together:
                data = bind(x.at(image - n, row - p, 0, 0))
            else:
                at_row = row * strides[0] + shift_h
                data = bind(x.at(volume, at_row, shift_w, g, read) + first)
            with serial(*columns) as q:
                vectors = [
                    y.buffer[vector(grad + q * y.w_step + v * lanes, lanes)]
                    for v in range(self.vectors)
                ]
                values = [x.buffer[int64(data + q * step + line.data)] for line in rows]
                outer(acc, lanes, values, vectors)
        for register, memory in each():
            T.buffer_store(parts, acc[register], [memory])

    @property
    def block(self) -> int:
        return self.vectors * self.lanes
