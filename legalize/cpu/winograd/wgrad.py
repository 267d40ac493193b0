"""Winograd's wgrad in tasks that share nothing: each transforms its own tiles and has its own sums.

Where all cores transform tiles for all, each then reads nearly all of them from other cores'
caches, some at a time, and adds to the weights each time.  Here a task has a part of the tiles and
all weights.  It transforms a piece of its tiles, multiplies, and goes on; its sums at all points
wait in its level-2 cache, and are transformed back once.  So this is for few weights.  Chunks of
them, each of which transforms tiles again, took longer for 128 channels and more.

The parts' weights are added in a fixed order: results do not depend on the number of threads.
"""

from __future__ import annotations

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
from .algorithm import APART, POINTS, A, B, G, Pieces, Where, first_pixel
from .parts import Points, Transforms, Window, window

LEAST, MOST = 12, 98  # tiles of a piece


@dataclass(frozen=True)
class Cut:
    """A task has one of `splits` parts of the pieces, which are of `rows` tiles."""

    rows: int
    splits: int


def best_cut(problem: ConvProblem, m: Machine, images: int) -> Cut | None:
    """Even parts for all cores, whose pieces and sums a level-2 cache holds; None if there are too
    many weights for that, or too few tiles."""
    if problem.rank != 2:
        return None
    vectors, lanes = channel_block(m, "float32", problem.k)
    filters = ceildiv(problem.k, vectors * lanes) * vectors * lanes
    channels = ceildiv(problem.c, lanes) * lanes
    tiles = Pieces.of(problem, images, 1).tiles.count
    room = m.l2_bytes // (4 * POINTS) - filters * channels
    most = min(room // (filters + channels), MOST)
    if most < LEAST:
        return None
    splits = max(1, min(m.cores, tiles // LEAST))
    each = ceildiv(tiles, splits)
    rows = ceildiv(each, ceildiv(each, most))
    return Cut(rows, min(splits, ceildiv(tiles, rows)))


def pays(problem: ConvProblem, m: Machine) -> bool:
    """Whether each core has a task, and there are others whose tiles it would read."""
    cut = best_cut(problem, m, problem.n)
    return cut is not None and 1 < m.cores == cut.splits


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel: operands in, tasks, sum of the parts, result out."""
    vectors, lanes = channel_block(m, "float32", problem.k)
    batch = memory.batch(
        memory.operand("grad", 1, problem.k, block=vectors * lanes),
        memory.operand("data", 1, problem.c, block=lanes),
    )
    weight, panels = memory.panels("O", 1, problem.k, problem.c, vectors * lanes)
    cut = best_cut(problem, m, batch.images)
    assert cut is not None
    core = _Tasks(problem, m, cut, batch.images, panels)
    with (
        parts_of(weight, memory, panels.size, cut.splits, lanes) as parts,
        batch.each() as (number, _, (y, x)),
    ):
        core.write(y, x, parts, number == 0)
    memory.move_weight(weight, panels, False)


class _Tasks:
    def __init__(
        self, problem: ConvProblem, m: Machine, cut: Cut, images: int, panels: Panels
    ) -> None:
        self.problem, self.cut, self.panels = problem, cut, panels
        self.vectors, self.lanes = channel_block(m, "float32", problem.k)
        self.block, self.blocks = panels.block, panels.blocks
        self.slices = ceildiv(problem.c, self.lanes)
        self.pieces = Pieces.of(problem, images, cut.rows)
        self.transforms = Transforms.of(problem, self.lanes)
        self.line = m.line("float32")
        height = min(tile_rows(m, self.vectors), self.lanes)
        self.height = next(h for h in range(height, 0, -1) if self.lanes % h == 0)
        # From one point's tiles to the next one's; of a slice, and of a block.
        self.x_step = self.pieces.size * self.lanes + APART
        self.y_step = self.pieces.size * self.block + APART
        self.s_step = self.lanes * self.block  # of a slice's and a block's sums

    def write(self, y: Image, x: Image, parts: Expr, is_first: Expr) -> None:
        """Adds what some images give to the parts, the first of which find nothing yet."""
        pieces, splits = self.pieces, self.cut.splits
        with parallel(splits) as (i,):
            scratch = Scratch()
            data = scratch.new("data_points", self.slices * POINTS * self.x_step, "float32")
            grad = scratch.new("grad_points", self.blocks * POINTS * self.y_step, "float32")
            of_all = self.slices * self.blocks * POINTS * self.s_step
            sums = scratch.new("sums", of_all, "float32")
            begin, end = map(bind, share(i, pieces.count, splits))
            with serial(end - begin) as number:
                first = pieces.first(bind(begin + number))
                count = bind(T.min(int64(pieces.size), int64(pieces.tiles.plane - first[2])))
                self._inputs(x, y, data, grad, first, count)
                is_new = True if pieces.count == splits else number == 0
                self._products(data, grad, sums, count, is_new)
            self._outputs(sums, parts, i, is_first)
            scratch.keep()

    def _inputs(
        self, x: Image, y: Image, data: Expr, grad: Expr, first: Where, count: Expr
    ) -> None:
        """Transforms a piece."""
        problem, lanes, block = self.problem, self.lanes, self.block
        before = first_pixel(problem)
        with serial(count) as row:
            (n, d, p, q), _, _ = self.pieces.operand(first, row)
            corner = n, d, bind(p - before[0]), bind(q - before[1])
            with serial(self.slices) as v:
                tile = window(x, corner, v * lanes, (problem.h, problem.w))
                target = bind(v * (POINTS * self.x_step) + row * lanes)
                self.transforms.evaluate(B, tile, Points(data, target, self.x_step))
            place, _ = self.pieces.result(first, row)
            with serial(self.blocks) as b, serial(self.vectors) as v:
                tile = window(y, place, b * block + v * lanes, (problem.p, problem.q))
                target = bind(b * (POINTS * self.y_step) + row * block + v * lanes)
                self.transforms.evaluate(A, tile, Points(grad, target, self.y_step))

    def _products(self, data: Expr, grad: Expr, sums: Expr, count: Expr, is_new: Expr) -> None:
        """Adds the products of a piece's tiles to the sums at each point."""
        height, lanes, vectors, block = self.height, self.lanes, self.vectors, self.block
        with (
            serial(POINTS) as e,
            serial(self.blocks) as b,
            serial(self.slices) as c,
            serial(lanes // height) as part,
        ):
            acc = local("acc", height * block, "float32")
            place = bind(((c * self.blocks + b) * POINTS + e) * self.s_step)
            place = bind(place + part * (height * block))
            registers = [vector(i * lanes, lanes) for i in range(height * vectors)]
            places = [vector(place + i * lanes, lanes) for i in range(height * vectors)]
            for register in registers:
                T.buffer_store(acc, zero("float32", lanes), [register])
            left = bind((c * POINTS + e) * self.x_step + part * height)
            right = bind((b * POINTS + e) * self.y_step)
            with serial(count) as t:
                # The next point's tiles.
                for line in range(0, block, self.line):
                    prefetch(grad, right + self.y_step + t * block + line, level=2)
                prefetch(data, left + self.x_step + t * lanes, level=2)
                terms = [grad[vector(right + t * block + v * lanes, lanes)] for v in range(vectors)]
                values = [data[int64(left + t * lanes + j)] for j in range(height)]
                outer(acc, lanes, values, terms)
            # Pieces are added as sums: one after the other their tiles would lose a digit.
            for register, there in zip(registers, places, strict=True):
                total = acc[register]
                if is_new is not True:
                    total = total + T.if_then_else(is_new, zero("float32", lanes), sums[there])
                T.buffer_store(sums, total, [there])

    def _outputs(self, sums: Expr, parts: Expr, part: Expr, is_first: Expr) -> None:
        """Transforms a task's sums to weights of its part."""
        lanes, block, panels = self.lanes, self.block, self.panels
        loops = serial(self.blocks), serial(self.problem.c), serial(self.vectors)
        with loops[0] as b, loops[1] as channel, loops[2] as v:
            c, own = bind(channel // lanes), bind(channel % lanes)
            at = (c * self.blocks + b) * (POINTS * self.s_step) + own * block + v * lanes
            target = part * panels.size + b * panels.block_step + channel * block + v * lanes
            taps = Window(parts, bind(target), (panels.r_step, panels.s_step))
            self.transforms.combine(G, Points(sums, bind(at), self.s_step), taps, is_first)
