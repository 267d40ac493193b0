"""Winograd's wgrad in tasks that share nothing: each transforms its own tiles and has its own sums.

Where all cores transform tiles for all, each then reads nearly all of them from other cores'
caches, some at a time, and adds to the weights each time.  Here a task has a part of the tiles, a
chunk of filters and one of channels.  It transforms a piece of its tiles, multiplies, and goes on;
its sums at all points wait in its level-2 cache, and are transformed back once.  Tiles are
transformed once for each chunk, so this is for weights that few chunks hold.

The parts' weights are added in a fixed order: results do not depend on the number of threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvProblem

from ...quotient import share
from ..emitters.loops import (
    Expr,
    Scratch,
    bind,
    ceildiv,
    int64,
    local,
    outer,
    parallel,
    prefetch,
    serial,
    vector,
    zero,
)
from ..emitters.memory import Image, Memory, Panels
from ..emitters.partial_sums import parts_of
from ..emitters.tiles import channel_block, tile_rows
from ..machine import Machine
from .algorithm import APART, POINTS, TAPS, TILE, A, B, G, Pieces, Where, even, first_pixel
from .parts import Points, Transforms, Window, window

# Cycles of a vector's transform, of a tile or a weight; of a register tile beyond its products; of
# an element of a part that is written and read again; bytes a cycle of what is not in a core's own
# caches.  Rough: they only choose between cuts.
_TRANSFORM, _REGISTERS, _PART, _SHARED = 150, 40, 1.5, 6
_ROWS = (112, 98, 56, 28, 16)  # tiles of a piece
_MOST_PARTS = 16 << 20  # bytes
_CHUNK = 8 << 20  # bytes that are transformed for all cores at a time, at most
_FEWER = 0.85  # of those cycles, what tasks are taken for


@dataclass(frozen=True)
class Sizes:
    """A problem in vectors: `blocks` of `block` filters, `slices` of `lanes` channels."""

    lanes: int
    vectors: int
    blocks: int
    slices: int
    tiles: int
    weights: int  # elements of all

    @staticmethod
    def of(problem: ConvProblem, m: Machine, images: int) -> Sizes:
        vectors, lanes = channel_block(m, "float32", problem.k)
        tiles = Pieces.of(problem, images, 1).tiles.count
        return Sizes(
            lanes, vectors, ceildiv(problem.k, vectors * lanes), ceildiv(problem.c, lanes), tiles,
            TAPS * TAPS * problem.c * problem.k,
        )  # fmt: skip

    @property
    def block(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Cut:
    """A task has one of `splits` parts of the pieces, which are of `rows` tiles; some of the blocks
    of filters, and some of the slices of channels."""

    rows: int
    splits: int
    blocks: int
    slices: int

    def cycles(self, size: Sizes, m: Machine) -> float:
        """Of the core that has most to do."""
        filters, channels = self.blocks * size.block, self.slices * size.lanes
        pieces = ceildiv(size.tiles, self.rows)
        tasks = self.splits * ceildiv(size.blocks, self.blocks)
        tasks *= ceildiv(size.slices, self.slices)
        both, pixels = filters + channels, TILE * TILE * 4  # bytes, of a tile and a channel
        piece = self.rows * POINTS * filters * channels / (2 * size.lanes)
        piece += POINTS * self.blocks * self.slices * 2 * _REGISTERS
        piece += self.rows * both * (_TRANSFORM / size.lanes + pixels / _SHARED)
        task = ceildiv(pieces, self.splits) * piece + filters * channels / size.lanes * _TRANSFORM
        sums = (self.splits + 1) * size.weights * _PART / m.cores if self.splits > 1 else 0.0
        return ceildiv(tasks, m.cores) * task + sums

    def held(self, size: Sizes) -> int:
        """Bytes of a task's tiles and sums."""
        filters, channels = self.blocks * size.block, self.slices * size.lanes
        return 4 * POINTS * (self.rows * (filters + channels) + filters * channels)


def cuts(size: Sizes, m: Machine) -> Iterator[Cut]:
    """Those whose tiles and sums a level-2 cache holds."""
    most = min(2 * m.cores, max(1, _MOST_PARTS // (4 * size.weights)))
    equal = [ceildiv(size.tiles, splits) for splits in range(1, most + 1)]
    rows = {even(size.tiles, x) for x in (*_ROWS, *equal) if min(_ROWS) <= x <= max(_ROWS)}
    for some, blocks, slices in itertools.product(
        sorted(rows), _chunks(size.blocks), _chunks(size.slices)
    ):
        for splits in range(1, min(most, ceildiv(size.tiles, some)) + 1):
            cut = Cut(some, splits, blocks, slices)
            if cut.held(size) <= m.l2_bytes:
                yield cut


def _chunks(total: int) -> list[int]:
    """Sizes of chunks of which none has a smaller equal."""
    return sorted({ceildiv(total, x) for x in range(1, total + 1)})


def _for_all(size: Sizes, m: Machine) -> float:
    """Cycles of a core where tiles are transformed for all cores."""
    filters, channels = size.blocks * size.block, size.slices * size.lanes
    chunk = min(_CHUNK, m.l2_bytes * m.cores // 2) // (4 * POINTS * (filters + channels))
    chunks = ceildiv(size.tiles, max(min(_ROWS), chunk))
    tasks = size.blocks * size.slices
    tasks *= 2 if tasks < 2 * m.cores else 1
    products = size.tiles * POINTS * filters * channels / (2 * size.lanes)
    weights = chunks * filters * channels / size.lanes * _TRANSFORM
    of_core = (products + weights) * ceildiv(tasks, m.cores) / tasks
    both = filters + channels
    of_core += size.tiles * both / size.lanes * _TRANSFORM / m.cores
    # Nearly all channels, and some blocks of filters, which other cores have written.
    foreign = channels + max(size.block, filters // m.cores) if m.cores > 1 else 0
    return of_core + 4 * POINTS * size.tiles * foreign / _SHARED


def pays(problem: ConvProblem, m: Machine) -> bool:
    """Whether such tasks take less than tiles that are transformed for all cores."""
    if problem.rank != 2:
        return False
    size = Sizes.of(problem, m, problem.n)
    most = _FEWER * _for_all(size, m)
    return any(cut.cycles(size, m) < most for cut in cuts(size, m))


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel: operands in, tasks, sum of the parts, result out."""
    vectors, lanes = channel_block(m, "float32", problem.k)
    batch = memory.batch(
        memory.operand("grad", 1, problem.k, block=vectors * lanes),
        memory.operand("data", 1, problem.c, block=lanes),
    )
    weight, panels = memory.panels("O", 1, problem.k, problem.c, vectors * lanes)
    size = Sizes.of(problem, m, batch.images)
    cut = min(cuts(size, m), key=lambda one: one.cycles(size, m))
    core = _Tasks(problem, m, size, cut, batch.images, panels)
    with (
        parts_of(weight, memory, panels.size, cut.splits, lanes) as parts,
        batch.each() as (number, _, (y, x)),
    ):
        core.write(y, x, parts, number == 0)
    memory.move_weight(weight, panels, False)


class _Tasks:
    def __init__(
        self, problem: ConvProblem, m: Machine, size: Sizes, cut: Cut, images: int, panels: Panels
    ) -> None:
        self.problem, self.size, self.cut, self.panels = problem, size, cut, panels
        self.pieces = Pieces.of(problem, images, cut.rows)
        self.transforms = Transforms.of(problem, size.lanes)
        self.line = m.line("float32")
        height = min(tile_rows(m, size.vectors), size.lanes)
        self.height = next(h for h in range(height, 0, -1) if size.lanes % h == 0)
        # From one point's tiles to the next one's; of a slice, and of a block.
        self.x_step = self.pieces.size * size.lanes + APART
        self.y_step = self.pieces.size * size.block + APART
        self.s_step = size.lanes * size.block  # of a slice's and a block's sums

    def write(self, y: Image, x: Image, parts: Expr, is_first: Expr) -> None:
        """Adds what some images give to the parts, the first of which find nothing yet."""
        size, cut = self.size, self.cut
        grid = cut.splits, ceildiv(size.blocks, cut.blocks), ceildiv(size.slices, cut.slices)
        with parallel(*grid) as (i, k, c):
            scratch = Scratch()
            data = scratch.new("data_points", cut.slices * POINTS * self.x_step, "float32")
            grad = scratch.new("grad_points", cut.blocks * POINTS * self.y_step, "float32")
            of_all = cut.slices * cut.blocks * POINTS * self.s_step
            sums = scratch.new("sums", of_all, "float32")
            blocks, slices = _chunk(k, cut.blocks, size.blocks), _chunk(c, cut.slices, size.slices)
            begin, end = map(bind, share(i, self.pieces.count, cut.splits))
            with serial(end - begin) as number:
                first = self.pieces.first(bind(begin + number))
                count = bind(
                    T.min(int64(self.pieces.size), int64(self.pieces.tiles.plane - first[2]))
                )
                self._inputs(x, y, data, grad, first, count, blocks, slices)
                is_new = True if self.pieces.count == cut.splits else number == 0
                self._products(data, grad, sums, count, blocks, slices, is_new)
            self._outputs(sums, parts, i, blocks, slices, is_first)
            scratch.keep()

    def _inputs(
        self, x: Image, y: Image, data: Expr, grad: Expr, first: Where, count: Expr,
        blocks: tuple[Expr, Expr], slices: tuple[Expr, Expr],
    ) -> None:  # fmt: skip
        """Transforms a piece."""
        problem, size = self.problem, self.size
        before = first_pixel(problem)
        with serial(count) as row:
            (n, d, p, q), _, _ = self.pieces.operand(first, row)
            corner = n, d, bind(p - before[0]), bind(q - before[1])
            with serial(slices[1] - slices[0]) as v:
                channel = bind((slices[0] + v) * size.lanes)
                tile = window(x, corner, channel, (problem.h, problem.w))
                target = bind(v * (POINTS * self.x_step) + row * size.lanes)
                self.transforms.evaluate(B, tile, Points(data, target, self.x_step))
            place, _ = self.pieces.result(first, row)
            with serial(blocks[1] - blocks[0]) as b, serial(size.vectors) as v:
                channel = bind((blocks[0] + b) * size.block + v * size.lanes)
                tile = window(y, place, channel, (problem.p, problem.q))
                target = bind(b * (POINTS * self.y_step) + row * size.block + v * size.lanes)
                self.transforms.evaluate(A, tile, Points(grad, target, self.y_step))

    def _products(
        self, data: Expr, grad: Expr, sums: Expr, count: Expr,
        blocks: tuple[Expr, Expr], slices: tuple[Expr, Expr], is_new: Expr,
    ) -> None:  # fmt: skip
        """Adds the products of a piece's tiles to the sums at each point."""
        size, height, lanes, vectors = self.size, self.height, self.size.lanes, self.size.vectors
        with (
            serial(POINTS) as e,
            serial(blocks[1] - blocks[0]) as b,
            serial(slices[1] - slices[0]) as c,
            serial(lanes // height) as part,
        ):
            acc = local("acc", height * size.block, "float32")
            place = bind(((c * self.cut.blocks + b) * POINTS + e) * self.s_step)
            place = bind(place + part * (height * size.block))
            registers = [vector(i * lanes, lanes) for i in range(height * vectors)]
            places = [vector(place + i * lanes, lanes) for i in range(height * vectors)]

            for register in registers:
                T.buffer_store(acc, zero("float32", lanes), [register])
            left = bind((c * POINTS + e) * self.x_step + part * height)
            right = bind((b * POINTS + e) * self.y_step)
            with serial(count) as t:
                # The next point's tiles.
                for line in range(0, size.block, self.line):
                    prefetch(grad, right + self.y_step + t * size.block + line, level=2)
                prefetch(data, left + self.x_step + t * lanes, level=2)
                terms = [
                    grad[vector(right + t * size.block + v * lanes, lanes)] for v in range(vectors)
                ]
                values = [data[int64(left + t * lanes + j)] for j in range(height)]
                outer(acc, lanes, values, terms)
            # Pieces are added as sums: one after the other their tiles would lose a digit.
            for register, there in zip(registers, places, strict=True):
                total = acc[register]
                if is_new is not True:
                    total = total + T.if_then_else(is_new, zero("float32", lanes), sums[there])
                T.buffer_store(sums, total, [there])

    def _outputs(
        self, sums: Expr, parts: Expr, part: Expr, blocks: tuple[Expr, Expr],
        slices: tuple[Expr, Expr], is_first: Expr,
    ) -> None:  # fmt: skip
        """Transforms a task's sums to weights of its part."""
        size, panels, channels = self.size, self.panels, self.problem.c
        rows: Expr = (slices[1] - slices[0]) * size.lanes
        if channels % size.lanes:
            rows = bind(T.min(int64(rows), channels - slices[0] * size.lanes))
        with (
            serial(blocks[1] - blocks[0]) as b, serial(rows) as row, serial(size.vectors) as v
        ):  # fmt: skip
            c, own = bind(row // size.lanes), bind(row % size.lanes)
            at = (c * self.cut.blocks + b) * (POINTS * self.s_step) + own * size.block
            source = Points(sums, bind(at + v * size.lanes), self.s_step)
            target = part * panels.size + (blocks[0] + b) * panels.block_step
            target = target + (slices[0] * size.lanes + row) * size.block + v * size.lanes
            taps = Window(parts, bind(target), (panels.r_step, panels.s_step))
            self.transforms.combine(G, source, taps, is_first)


def _chunk(number: Expr, size: int, total: int) -> tuple[Expr, Expr]:
    """(begin, end) of a chunk."""
    if size >= total:
        return 0, total
    begin = bind(number * size)
    return begin, bind(T.min(begin + size, int64(total)) if total % size else begin + size)
