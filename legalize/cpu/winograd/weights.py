"""Winograd's fprop and dgrad of few tiles and many weights: each task transforms its own weights.

Transformed weights are four times the given ones; with few tiles their way to memory and back
takes as long as the products.  Here a task has one block of output channels and all tiles.  It
transforms a part of the weights, multiplies while that is in its level-2 cache, and adds to its
sums.
"""

from __future__ import annotations

from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

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
from ..emitters.memory import Image, Memory
from ..emitters.partial_sums import is_even
from ..emitters.tiles import channel_block, tile_rows
from ..machine import Machine
from .algorithm import (
    APART,
    POINTS,
    SIZE,
    TAPS,
    A,
    B,
    G,
    Tiles,
    load,
    load_points,
    load_taps,
    store,
    store_points,
)

# Channels whose weights are transformed at a time.
_PART = 64


def pays(problem: ConvProblem, m: Machine) -> bool:
    """Whether a task's sums stay in a level-2 cache, but all weights would not."""
    operand, _, result = problem.roles
    reduced, channels = (problem.canonical_shape(role)[1] for role in (operand, result))
    vectors, lanes = channel_block(m, "float32", channels)
    in_place = all(
        problem.layout(role)[-1] == "C" and problem.dtype(role) == "float32"
        for role in (operand, result)
    )
    tiles = Tiles(problem.n, *problem.canonical_shape(result)[2:]).count
    return bool(
        in_place
        and 4 * POINTS * tiles * vectors * lanes <= m.l2_bytes * 5 // 8
        and 4 * POINTS * channels * reduced > m.l2_bytes * m.cores
        and channels % (vectors * lanes) == reduced % _PART == 0
        and is_even(channels // (vectors * lanes), m.cores)
    )


class Kernel:
    """One kernel's sizes and memory."""

    def __init__(self, problem: ConvProblem, m: Machine, memory: Memory) -> None:
        dgrad = problem.kind is ConvKind.DGRAD
        operand, _, result = problem.roles
        self.size, out = problem.canonical_shape(operand), problem.canonical_shape(result)
        self.before = [TAPS - 1 - b if dgrad else b for b in problem.padding[:2]]
        self.lanes = m.lanes("float32")
        self.line = m.line("float32")
        self.vectors, _ = channel_block(m, "float32", out[1])
        self.block = self.vectors * self.lanes
        reduced = self.size[1]
        self.weight, self.panels = memory.panels(
            "I" if dgrad else "O", 1, out[1], reduced, self.block
        )
        memory.move_weight(self.weight, self.panels, True, reverse=dgrad)
        self.batch = memory.batch(
            memory.operand(operand, 1, reduced, block=self.lanes),
            memory.result(1, out[1], block=self.block),
        )
        self.tiles = Tiles(self.batch.images, *out[2:])
        most = tile_rows(m, self.vectors)
        self.height = ceildiv(self.tiles.count, ceildiv(self.tiles.count, most))
        self.rows = ceildiv(self.tiles.count, self.height) * self.height
        self.step = reduced + APART
        self.slab = _PART * self.block + APART  # of one point's weights
        self.moved = memory.scratch.new("tiles", POINTS * self.rows * self.step, "float32")

    def write(self) -> None:
        with self.batch.each() as (_, _, (x, y)):
            with parallel(self.tiles.count) as (tile,), serial(self.size[1] // self.lanes) as v:
                self._input(x, tile, v)
            with parallel(self.panels.blocks) as (b,):
                scratch = Scratch()
                sums = scratch.new("sums", POINTS * self.rows * self.block, "float32")
                points = scratch.new("points", POINTS * self.slab, "float32")
                with serial(self.panels.reduced // _PART) as part:
                    with serial(_PART) as c, serial(self.vectors) as v:
                        self._weight(points, b, part, c, v)
                    with serial(POINTS) as e, serial(self.rows // self.height) as i:
                        self._products(sums, points, part, e, bind(i * self.height))
                with serial(self.tiles.count) as tile, serial(self.vectors) as v:
                    self._output(y, sums, b, tile, v)
                scratch.keep()

    def _input(self, x: Image, tile: Expr, v: Expr) -> None:
        """Transforms one tile of one vector of channels."""
        n, p, q = self.tiles.place(tile)
        p, q = bind(p - self.before[0]), bind(q - self.before[1])

        channel = v * self.lanes
        values = load(x, n, channel, (p, q), (self.size[2], self.size[3]), SIZE, self.lanes)
        place = bind(tile * self.step + channel)
        store_points(B, values, self.moved, place, self.rows * self.step, self.lanes)

    def _weight(self, points: Expr, b: Expr, part: Expr, c: Expr, v: Expr) -> None:
        """Transforms one vector of weights."""
        first = v * self.lanes
        source = bind(b * self.panels.block_step + (part * _PART + c) * self.block + first)
        taps = load_taps(self.weight, self.panels, source, self.lanes)
        store_points(G, taps, points, bind(c * self.block + first), self.slab, self.lanes)

    def _products(self, sums: Expr, points: Expr, part: Expr, e: Expr, row: Expr) -> None:
        """Adds the products of one point's tiles from `row` on with a part of the weights."""
        height, vectors, lanes = self.height, self.vectors, self.lanes
        acc = local("acc", height * self.block, "float32")
        at = [vector(i * lanes, lanes) for i in range(height * vectors)]
        place = bind((e * self.rows + row) * self.block)
        places = [vector(place + i * lanes, lanes) for i in range(height * vectors)]
        for register, there in zip(at, places, strict=True):
            before = T.if_then_else(part == 0, zero("float32", lanes), sums[there])
            T.buffer_store(acc, before, [register])
        left = bind((e * self.rows + row) * self.step + part * _PART)
        right = bind(e * self.slab)
        ahead = left + self.rows * self.step  # what the next point's tiles need
        for i in range(height):
            for c in range(0, _PART, self.line):
                prefetch(self.moved, ahead + i * self.step + c, level=2)
        with serial(_PART) as c:
            terms = [
                points[vector(right + c * self.block + v * lanes, lanes)] for v in range(vectors)
            ]
            first = left + c
            values = [self.moved[int64(first + i * self.step)] for i in range(height)]
            outer(acc, lanes, values, terms)
        for register, there in zip(at, places, strict=True):
            T.buffer_store(sums, acc[register], [there])

    def _output(self, y: Image, sums: Expr, b: Expr, tile: Expr, v: Expr) -> None:
        """Transforms the sums of one tile and one vector of channels."""
        place = self.tiles.place(tile)
        first = bind(tile * self.block + v * self.lanes)
        step = self.rows * self.block
        values = load_points(A, sums, first, step, self.lanes)
        store(y, place, b * self.block + v * self.lanes, self.tiles, values, self.lanes)
