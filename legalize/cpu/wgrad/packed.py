"""wgrad as a product of panels.

With 16 registers a tile is so low that each pixel brings it a fraction of a cache line of data.  So
a task packs a unit of pixels first: the gradient as [block of k][pixel][lanes], the data of one
tap as [tile of c][pixel][row of the tile].  A block of the gradient then stays in the level-1 cache
while tiles of data pass from the level-2 cache, and the accumulators are loaded and stored once
per tile and unit:

    dw[tap, tile, block] += sum over pixels of data[tile][pixel] (x) gradient[block][pixel]

In a panel the pixels are ordered (row, image, column).  So the rows that a tap reaches are one run,
whatever the number of images.  A tap that does not reach all columns takes its part of each line:
what is off the image must not be multiplied, since zero times infinity is not zero.

A task is a part of the pixels, a group, a chunk of k and a chunk of c (`work_split`).  The parts'
sums are added in a fixed order.

Of a 1x1 kernel of stride 1 the pixels are one run of memory, which allows more:

- dw' = x' y is the same product, so either side may be the rows of a tile and the other its lanes
  (`_oriented`): 24 or 112 filters leave lanes idle, as rows they do not.
- With 32 registers a tile has rows enough for an operand to be read where it lies, unless its
  pixels are many pages apart or fall on few places of a level-1 cache.
- With 32 registers the products also ask for the next unit's operands, in the order of memory:
  they come from beyond the level-2 cache, about as long as the products take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvProblem

from ...quotient import share
from ..emitters.loops import (  # fmt: skip
    Expr,
    Scratch,
    bind,
    ceildiv,
    conjunction,
    int64,
    local,
    outer,
    parallel,
    prefetch,
    serial,
    vector,
    when,
    zero,
)
from ..emitters.memory import NO_BORDER, Batch, Image, Memory
from ..emitters.partial_sums import parts_of
from ..emitters.tiles import channel_block, heights, tile_rows
from ..machine import Machine
from .panels import Packing, Panel, Run, Unit, unit_of
from .pixels import Pixels, cut
from .work_split import Work, WorkSplit, best_split

LEAST_CHANNELS = 24  # of a group: with 16, packing costs a little more than it gains


# With many registers a tile brings less data for each product: with so many channels where taps
# share no lines that follow each other.
STRIDED = 128
# An operand is read in place where a unit's pixels lie within so many bytes, which the pages of a
# level-1 TLB cover; more if they have some places in a way of a level-1 cache.  The gradient is to
# stay in that cache, so its pixels must have many, unless tiles are few.  All measured.
SPREAD, WIDE_SPREAD, _SOME_PLACES = 256 << 10, 400 << 10, 8
_MANY_PLACES, _FEW_TILES = 16, 8
# Loads in the time of a multiply-add of a register tile's row; cycles of an element of the result
# that changes its place; and what turning must save.
_LOAD, _MOVED, _TURNED = 1.1, 0.5, 0.97


def pays(problem: ConvProblem, m: Machine) -> bool:
    """Whether panels pay; measured."""
    few = min(problem.c, problem.k) // problem.groups
    if m.has_few_registers:
        return few >= LEAST_CHANNELS
    return _is_product(problem) or (problem.strides != (1, 1) and few >= STRIDED)


def _is_product(problem: ConvProblem) -> bool:
    """Whether the sum is one over all pixels of both operands alike."""
    plain = problem.strides == (1, 1) and problem.padding == NO_BORDER
    return plain and problem.r == problem.s == 1 and problem.groups == 1


def _oriented(problem: ConvProblem, m: Machine, accum: str) -> ConvProblem:
    """A product as it is, or with operands exchanged and the result transposed, if that is less
    work."""
    if not _is_product(problem):
        return problem
    other = {"O": "I", "I": "O"}
    turned = replace(
        problem, c=problem.k, k=problem.c,
        data_layout=problem.grad_layout, grad_layout=problem.data_layout,
        data_dtype=problem.grad_dtype, grad_dtype=problem.data_dtype,
        kernel_layout="".join(other.get(x, x) for x in problem.kernel_layout),
    )  # fmt: skip
    as_is = _cycles(problem, m, accum)
    return turned if _cycles(turned, m, accum) < _TURNED * as_is else problem


def _cycles(problem: ConvProblem, m: Machine, accum: str) -> float:
    """Of a pixel of a product."""
    vectors, lanes = channel_block(m, accum, problem.k)
    block, height = vectors * lanes, _height(m, vectors, problem.c)
    full, rest = divmod(problem.c, height)
    rows = [height] * full + [rest] * (rest > 0)
    tiles = sum(max(x * vectors, _LOAD * (x + vectors)) / 2 for x in rows)
    cycles = ceildiv(problem.k, block) * tiles
    if not problem.is_static or _is_direct(problem, block, accum):
        return float(cycles)
    return float(cycles + _MOVED * problem.c * problem.k / (problem.n * math.prod(problem.spatial)))


def _height(m: Machine, vectors: int, channels: int) -> int:
    """Rows of a register tile, of tiles that are about equal."""
    most = min(tile_rows(m, vectors), 16)
    return ceildiv(channels, ceildiv(channels, most))


def _is_direct(problem: ConvProblem, block: int, accum: str) -> bool:
    """Whether sums of blocks of filters can wait in the result's own memory."""
    last = problem.layout("weight")[-1] == "O" and problem.dtype("weight") == accum
    return last and problem.k // problem.groups % block == 0


@dataclass(frozen=True)
class Destination:
    """The result in memory, or a part of it; a block's filters are contiguous."""

    buffer: Expr
    size: int
    g_step: int
    b_step: int
    r_step: int
    s_step: int
    c_step: int

    def at(self, g: Expr, b: Expr, r: Expr, s: Expr, c: Expr) -> Expr:
        place = g * self.g_step + b * self.b_step + c * self.c_step
        return place + r * self.r_step + s * self.s_step


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel: operands in, core, sum of the parts, result out."""
    groups, accum = problem.groups, memory.accum
    oriented = _oriented(problem, m, accum)
    if oriented is not problem:
        problem, memory = oriented, memory.exchanged(oriented)
    filters, channels = problem.k // groups, problem.c // groups
    vectors, lanes = channel_block(m, accum, filters)
    block = vectors * lanes
    batch = memory.batch(
        memory.operand("grad", groups, filters), memory.operand("data", groups, channels)
    )
    if _is_direct(problem, block, accum):
        step = memory.strides("weight")
        size = problem.r * problem.s * channels * problem.k
        result = memory.flat("weight")
        sums = Destination(result, size, filters, block, step["H"], step["W"], step["I"])
        Core(problem, m, accum, batch, sums, vectors, lanes).write(batch, memory)
        return
    buffer, panels = memory.panels("O", groups, filters, channels, block)
    sums = Destination(
        buffer, groups * panels.at(1, 0, 0, 0), panels.at(1, 0, 0, 0),
        panels.block_step, panels.r_step, panels.s_step, block,
    )  # fmt: skip
    Core(problem, m, accum, batch, sums, vectors, lanes).write(batch, memory)
    memory.move_weight(buffer, panels, False)


class Core:
    def __init__(
        self, problem: ConvProblem, m: Machine, accum: str, batch: Batch, sums: Destination,
        vectors: int, lanes: int,
    ) -> None:  # fmt: skip
        self.problem = problem
        self.accum = accum
        self.sums = sums
        self.vectors = vectors
        self.lanes = lanes
        self.block = vectors * lanes
        self.line = m.line(accum)
        self.filters = problem.k // problem.groups
        self.channels = problem.c // problem.groups
        self.height = _height(m, vectors, self.channels)
        bytes_ = DTYPE_BYTES[accum]
        # A block's panel of the gradient takes half of a level-1 cache, or less for even work.
        target = m.l1_bytes // 2 // (self.block * bytes_)
        options = [self._cut(batch, most, m) for most in (target, self._even(batch, target, m))]
        self.pixels, self.work, self.split = min(
            options, key=lambda option: option[2].cycles(option[1], m)
        )
        most = _most(self.pixels)
        self.y_step, self.x_step = self._steps(most)
        self.packing = Packing(
            problem, accum, lanes, self.work.blocks, self.work.tiles, self.block, self.height,
            self.y_step, self.x_step, self.pixels.total is not None,
        )  # fmt: skip
        y, x = (tensor.w_step * bytes_ for tensor in batch.tensors)
        self.asks = self.pixels.total is not None and not m.has_few_registers
        places = [m.l1_way_bytes // math.gcd(step, m.l1_way_bytes) for step in (y, x)]
        near = [
            self.asks and self.pixels.q * step <= (WIDE_SPREAD if many >= _SOME_PLACES else SPREAD)
            for step, many in zip((y, x), places, strict=True)
        ]
        stays = places[0] >= _MANY_PLACES or self.work.tiles <= _FEW_TILES
        self.grad_stays = near[0] and stays and self.filters % self.block == 0
        self.data_stay = near[1]

    def _even(self, batch: Batch, target: int, m: Machine) -> int:
        """Pixels of a unit, no more than `target`, of which there are as many for each core."""
        units_n, units_p = cut(self.problem, batch, target).units
        if not self.problem.is_static:
            return target
        units = units_n * units_p
        return max(1, target * units // (ceildiv(units, m.cores) * m.cores))

    def _steps(self, most: int) -> tuple[int, int]:
        """Elements of a block's panel and of a tile's, of so many pixels: an odd number of lines,
        so that panels do not compete for a few sets of a cache."""
        line = self.line
        y_step, x_step = (
            (ceildiv(most * size, line) | 1) * line for size in (self.block, self.height)
        )
        return y_step, x_step

    def _cut(self, batch: Batch, target: int, m: Machine) -> tuple[Pixels, Work, WorkSplit]:
        """Units of `target` pixels or fewer, and how tasks share them."""
        problem, bytes_ = self.problem, DTYPE_BYTES[self.accum]
        pixels = cut(problem, batch, target)
        most = _most(pixels)
        y_step, x_step = self._steps(most)
        units_n, units_p = pixels.units
        work = Work(
            groups=problem.groups,
            taps=problem.r * problem.s,
            units=units_n * units_p if problem.is_static else m.cores,
            blocks=ceildiv(self.filters, self.block),
            tiles=ceildiv(self.channels, self.height),
            block_bytes=y_step * bytes_,
            tile_bytes=x_step * bytes_,
            tile_cycles=most * self.height * self.vectors / 2,
            size=self.sums.size,
            element_bytes=bytes_,
        )
        return pixels, work, best_split(work, m)

    def write(self, batch: Batch, memory: Memory) -> None:
        result, splits = self.sums, self.split.splits
        with (
            parts_of(result.buffer, memory, result.size, splits, self.lanes) as parts,
            batch.each() as (number, images, tensors),
        ):
            self.sums = replace(result, buffer=parts)
            self.pixels, (y, x) = self.pixels.of_images(images, *tensors)
            self._tasks(x, y, number == 0)

    def _tasks(self, x: Image, y: Image, is_first: Expr) -> None:
        """Adds the sums over some images, the first of which find no sums yet."""
        split, work, problem = self.split, self.work, self.problem
        units_n, units_p = self.pixels.units
        units = units_n * units_p
        grid = split.splits, problem.groups, *split.chunks(work)
        with parallel(*grid) as (i, g, k_chunk, c_chunk):
            scratch = Scratch()
            grad, data = (
                None if stays else scratch.new(name, size, self.accum)
                for name, size, stays in (
                    ("grad_panels", split.k_blocks * self.y_step, self.grad_stays),
                    ("data_panels", split.c_tiles * self.x_step, self.data_stay),
                )
            )
            part = bind(i * self.sums.size)
            blocks = _chunk(k_chunk, split.k_blocks, work.blocks)
            tiles = _chunk(c_chunk, split.c_tiles, work.tiles)
            if not problem.is_static:  # there may be no unit to begin with
                with when(is_first):
                    self._clear(part, g, blocks, tiles)
            begin, end = map(bind, share(i, units, split.splits))
            with serial(end - begin) as number:
                unit = unit_of(self.pixels, bind(begin + number), g)
                asks = []
                if self.asks:
                    later = unit_of(self.pixels, bind(T.min(begin + number + 1, end - 1)), g)
                    asks = [(image, bind(image.at(later.n, later.p, 0, 0))) for image in (y, x)]
                if grad is not None:
                    self.packing.grad(y, grad, unit, blocks)
                with serial(problem.r) as r, serial(problem.s) as s:
                    if data is None:
                        run = Run(1, 0, unit.columns, 0)
                    else:
                        run = self.packing.data(x, data, unit, (r, s), tiles)
                    is_new = conjunction(is_first, number == 0) if problem.is_static else False
                    with serial(blocks[1] - blocks[0]) as b, serial(tiles[1] - tiles[0]) as t:
                        tile = bind(tiles[0] + t)
                        at = self.sums.at(g, blocks[0] + b, r, s, tile * self.height)
                        operands = (
                            Panel(data, t * self.x_step, self.height)
                            if data is not None
                            else self._in_place(x, unit, tile * self.height),
                            Panel(grad, b * self.y_step, self.block)
                            if grad is not None
                            else self._in_place(y, unit, (blocks[0] + b) * self.block),
                        )
                        number = b * (tiles[1] - tiles[0]) + t
                        ahead = [self._ahead(*ask, number) for ask in asks]
                        for rows, fits in heights(self.channels, self.height, tile):
                            with when(fits):
                                self._tile(rows, *operands, part + at, run, is_new, ahead)
            scratch.keep()

    def _clear(
        self, part: Expr, g: Expr, blocks: tuple[Expr, Expr], tiles: tuple[Expr, Expr]
    ) -> None:
        """Zeros in a task's sums."""
        begin = bind(tiles[0] * self.height)
        end = bind(T.min(tiles[1] * self.height, int64(self.channels)))
        with (
            serial(self.problem.r) as r,
            serial(self.problem.s) as s,
            serial(blocks[1], blocks[0]) as b,
            serial(end, begin) as c,
        ):
            at = bind(part + self.sums.at(g, b, r, s, c))
            for v in range(self.vectors):
                place = vector(at + v * self.lanes, self.lanes)
                T.buffer_store(self.sums.buffer, zero(self.accum, self.lanes), [place])

    def _in_place(self, image: Image, unit: Unit, channel: Expr) -> Panel:
        """A unit of an operand that stays where it is."""
        return Panel(
            image.buffer, image.at(unit.n, unit.p, 0, unit.g) + channel, image.w_step
        )  # fmt: skip

    def _ahead(self, image: Image, begin: Expr, number: Expr) -> Panel:
        """The cache lines, one for a pixel, of the next unit that a tile asks for: each has its
        own, in the order of memory, until there are no more."""
        line, pixels = self.line, self.pixels.q
        last = pixels * image.w_step - 1
        return Panel(
            image.buffer, bind(begin + T.min(int64(number * (pixels * line)), int64(last))), line
        )

    def _tile(
        self, rows: int, data: Panel, grad: Panel, at: Expr, run: Run, is_new: Expr,
        ahead: list[Panel],
    ) -> None:  # fmt: skip
        """One tile of accumulators over a tap's pixels, which asks for what is `ahead`."""
        lanes, accum, sums = self.lanes, self.accum, self.sums
        acc = local("acc", rows * self.block, accum)
        at = bind(at)
        registers = [vector(i * lanes, lanes) for i in range(rows * self.vectors)]
        places = [
            vector(at + i * sums.c_step + v * lanes, lanes)
            for i in range(rows)
            for v in range(self.vectors)
        ]

        def load() -> None:
            for register, place in zip(registers, places, strict=True):
                T.buffer_store(acc, sums.buffer[place], [register])

        if is_new is False:
            load()
        else:
            with T.If(is_new):
                with T.Then():
                    for register in registers:
                        T.buffer_store(acc, zero(accum, lanes), [register])
                with T.Else():
                    load()
        with serial(run.lines) as line:
            pixel = bind(run.first + line * run.step)
            right, left = bind(grad.at + pixel * grad.step), bind(data.at + pixel * data.step)
            with serial(run.count) as q:
                for lines in ahead:
                    prefetch(lines.buffer, lines.at + q * lines.step, level=2)
                y_at, x_at = right + q * grad.step, left + q * data.step
                terms = [grad.buffer[vector(y_at + v * lanes, lanes)] for v in range(self.vectors)]
                outer(acc, lanes, [data.buffer[int64(x_at + i)] for i in range(rows)], terms)
        for register, place in zip(registers, places, strict=True):
            T.buffer_store(sums.buffer, acc[register], [place])


def _most(pixels: Pixels) -> int:
    """Pixels of the largest unit."""
    return pixels.images * pixels.rows * pixels.q


def _chunk(number: Expr, size: int, total: int) -> tuple[Expr, Expr]:
    """(begin, end) of a chunk."""
    if size >= total:
        return 0, total
    begin = bind(number * size)
    end = begin + size
    return begin, bind(T.min(end, int64(total)) if total % size else end)
