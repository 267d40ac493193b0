"""Winograd's fprop and dgrad of few tiles and many weights: each task transforms its own weights.

Transformed weights are four times the given ones; with few tiles their way to memory and back
takes as long as the products.  Here a task has one block of output channels and all tiles.  It
transforms a part of the weights, multiplies while that is in its level-2 cache, and adds to its
sums.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from ..emitters.loops import (
    Expr,
    Scratch,
    bind,
    ceildiv,
    conjunction,
    digits,
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
from ..emitters.memory import Image, Memory
from ..emitters.partial_sums import is_even
from ..emitters.tiles import channel_block, tile_rows
from ..machine import Machine
from .algorithm import (
    APART,
    POINTS,
    A,
    B,
    G,
    Pieces,
    first_pixel,
)
from .parts import Points, Transforms, Window, window, written

# Channels whose weights are transformed at a time.
_PART = 64


def pays(problem: ConvProblem, m: Machine) -> bool:
    """Whether a task's sums stay in a level-2 cache, but all weights would not."""
    operand, _, result = problem.roles
    reduced, channels = (problem.canonical_shape(role)[1] for role in (operand, result))
    vectors, lanes = channel_block(m, "float32", channels)
    pieces = Pieces.of(problem, problem.n, 1)
    tiles, reduced = pieces.tiles.count, reduced * pieces.taps
    return bool(
        4 * POINTS * tiles * vectors * lanes <= m.l2_bytes * 5 // 8
        and 4 * POINTS * channels * reduced > m.l2_bytes * m.cores
        and channels % (vectors * lanes) == reduced % _PART == 0
        and is_even(channels // (vectors * lanes), m.cores)
        # Copies of all images at once: weights are transformed for each of some.
        and _copied(problem, (operand, result)) <= m.l2_bytes * m.cores
    )


def _copied(problem: ConvProblem, roles: tuple[str, str]) -> int:
    """Bytes of tensors that are not channel-last in float32."""
    return sum(
        4 * math.prod(problem.canonical_shape(role))
        for role in roles
        if problem.layout(role)[-1] != "C" or problem.dtype(role) != "float32"
    )


class Kernel:
    """One kernel's sizes and memory."""

    def __init__(self, problem: ConvProblem, m: Machine, memory: Memory) -> None:
        dgrad = problem.kind is ConvKind.DGRAD
        operand, _, result = problem.roles
        self.size, self.out = problem.canonical_shape(operand), problem.canonical_shape(result)
        out = self.out
        self.before = first_pixel(problem)
        self.lanes = m.lanes("float32")
        self.transforms = Transforms.of(problem, self.lanes)
        self.line = m.line("float32")
        self.vectors, _ = channel_block(m, "float32", out[1])
        self.block = self.vectors * self.lanes
        reduced = self.size[1]
        self.panels = memory.copied_panels("I" if dgrad else "O", 1, out[1], reduced, self.block)
        self.weight = memory.copied_weight(self.panels, dgrad)
        self.batch = memory.batch(
            memory.operand(operand, 1, reduced, block=self.lanes),
            memory.result(1, out[1], block=self.block),
        )
        pieces = Pieces.of(problem, self.batch.images, 1)
        # One for each image, or for all that have no depth.
        pieces = replace(pieces, high=pieces.tiles.planes, wide=pieces.tiles.plane)
        self.pieces = pieces
        most, length = tile_rows(m, self.vectors), pieces.size
        self.height = ceildiv(length, ceildiv(length, most))
        self.each = ceildiv(length, self.height)  # register tiles of a piece
        self.rows = pieces.count * self.each * self.height  # of sums
        self.read = self.each * self.height + pieces.read - length  # of tiles, of a piece
        self.step = reduced + APART
        self.slab = _PART * self.block + APART  # of one point's weights
        self.point_step = pieces.count * self.read * self.step
        self.moved = memory.scratch.new("tiles", POINTS * self.point_step, "float32")

    def write(self) -> None:
        pieces, taps = self.pieces, self.pieces.taps
        with self.batch.each() as (_, _, (x, y)):
            grid = (pieces.count, pieces.read)
            with parallel(*grid) as (piece, row), serial(self.size[1] // self.lanes) as v:
                self._input(x, piece, row, v)
            with parallel(self.panels.blocks) as (b,):
                scratch = Scratch()
                sums = scratch.new("sums", POINTS * self.rows * self.block, "float32")
                points = scratch.new("points", POINTS * self.slab, "float32")
                with serial(self.panels.reduced // _PART) as part, serial(taps) as t:
                    with serial(_PART) as c, serial(self.vectors) as v:
                        self._weight(points, b, (part, t), c, v)
                    with serial(POINTS) as e, serial(pieces.count * self.each) as i:
                        self._products(sums, points, (part, t), e, i)
                with serial(pieces.count * pieces.size) as tile, serial(self.vectors) as v:
                    self._output(y, sums, b, tile, v)
                scratch.keep()

    def _input(self, x: Image, piece: Expr, row: Expr, v: Expr) -> None:
        """Transforms one tile of one vector of channels."""
        (n, d, p, q), exists, _ = self.pieces.operand((piece, 0, 0), row)
        corner = n, d, bind(p - self.before[0]), bind(q - self.before[1])
        channel = v * self.lanes
        read = window(x, corner, channel, self.size[-2:], exists)
        place = bind((piece * self.read + row) * self.step + channel)
        self.transforms.evaluate(B, read, Points(self.moved, place, self.point_step))

    def _weight(self, points: Expr, b: Expr, of: tuple[Expr, Expr], c: Expr, v: Expr) -> None:
        """Transforms one vector of weights, of (a part of the channels, a tap in depth)."""
        (part, t), first = of, v * self.lanes
        source = b * self.panels.block_step + t * self.panels.t_step
        source = bind(source + (part * _PART + c) * self.block + first)
        taps = Window(self.weight, source, (self.panels.r_step, self.panels.s_step))
        target = Points(points, bind(c * self.block + first), self.slab)
        self.transforms.evaluate(G, taps, target)

    def _products(
        self, sums: Expr, points: Expr, of: tuple[Expr, Expr], e: Expr, number: Expr
    ) -> None:
        """Adds the products of one point's tiles, a register tile, with a part of the weights."""
        height, vectors, lanes = self.height, self.vectors, self.lanes
        part, t = of
        piece, own = (0, number) if self.pieces.count == 1 else (
            bind(number // self.each), bind(number % self.each)
        )  # fmt: skip
        own = bind(own * height)
        low, high = self.pieces.reached((piece, 0, 0), own, height)
        is_first = conjunction(part == 0, t == 0)
        met: Expr = True
        if self.pieces.depth:  # a first tap that is met by none clears its sums
            met = tirx.any(is_first, tirx.all(t >= low, t < high))
        with when(met):
            acc = local("acc", height * self.block, "float32")
            at = [vector(i * lanes, lanes) for i in range(height * vectors)]
            place = bind((e * self.rows + number * height) * self.block)
            places = [vector(place + i * lanes, lanes) for i in range(height * vectors)]
            for register, there in zip(at, places, strict=True):
                before = T.if_then_else(is_first, zero("float32", lanes), sums[there])
                T.buffer_store(acc, before, [register])
            left = piece * self.read + own + t * self.pieces.tap
            left = bind(e * self.point_step + left * self.step + part * _PART)
            right = bind(e * self.slab)
            ahead = left + self.point_step  # what the next point's tiles need
            for i in range(height):
                for c in range(0, _PART, self.line):
                    prefetch(self.moved, ahead + i * self.step + c, level=2)
            with serial(_PART) as c:
                terms = [
                    points[vector(right + c * self.block + v * lanes, lanes)]
                    for v in range(vectors)
                ]
                first = left + c
                values = [self.moved[int64(first + i * self.step)] for i in range(height)]
                outer(acc, lanes, values, terms)
            for register, there in zip(at, places, strict=True):
                T.buffer_store(sums, acc[register], [there])

    def _output(self, y: Image, sums: Expr, b: Expr, tile: Expr, v: Expr) -> None:
        """Transforms the sums of one tile and one vector of channels."""
        pieces = self.pieces
        piece, row = digits(tile, (pieces.count, pieces.size))
        first = bind((piece * self.each * self.height + row) * self.block + v * self.lanes)
        step = self.rows * self.block
        place, _ = pieces.result((piece, 0, 0), row)
        result = written(y, place, b * self.block + v * self.lanes, self.out[-2:])
        self.transforms.combine(A, Points(sums, first, step), result)
