"""wgrad of 1x1 where channels are outside: dw[K, C] = sum over images of y[K, P] x[C, P].

Pixels are innermost in both operands, so they fill the vectors and nothing is copied: a tile of
vectors sums its products of some rows of y and of x over a unit of pixels, and what a vector's
lanes hold is added up once per unit.  A unit's rows of y stay in the level-1 cache while x's pass
from the level-2 cache.  An image's last pixels, less than a vector, are the end of a vector whose
other lanes are zeros in both.

A task has a part of the units and some rows of y; the parts are added in a fixed order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...quotient import share
from ..direct.outside import MOVED, is_product
from ..emitters.loops import Expr, bind, ceildiv, int64, local, parallel, serial, vector, when, zero
from ..emitters.memory import Memory
from ..emitters.partial_sums import parts_of
from ..emitters.tiles import heights
from ..machine import Machine
from .unpacked import PART, SHARED, TILE

_WIDTH = 4  # rows of x in a register tile
_SUM = 1.5  # vectors' multiply-adds in the time of adding up the lanes of one; measured


def pays(problem: ConvProblem, m: Machine) -> bool:
    """Whether wgrad is such a product, and less work than with channels inside: lanes idle at an
    image's end and vectors are added up, but no element changes its place."""
    p = problem
    if p.kind is not ConvKind.WGRAD or not is_product(p):
        return False
    lanes, pixels = m.lanes(p.accum_dtype), math.prod(p.spatial)
    if pixels < lanes or lanes < _WIDTH:
        return False
    images, pieces = _unit(p, m)
    idle = (-pixels % lanes + _SUM * lanes * pieces / images) * p.c * p.k
    return bool(idle <= lanes * MOVED * (p.c + p.k) * pixels)


def _height(m: Machine) -> int:
    """Rows of y in a register tile: each line of x from the level-2 cache serves so many."""
    return 3 if m.has_few_registers else 6


def _unit(problem: ConvProblem, m: Machine) -> tuple[int, int]:
    """(images of a unit, pieces of an image's vectors): one of them is 1."""
    lanes = m.lanes(problem.accum_dtype)
    vectors = math.prod(problem.spatial) // lanes
    row = m.vector_bytes * (_height(m) + _WIDTH)
    most = min(m.l1_bytes * 7 // 8 // row, m.l2_bytes // 2 // (m.vector_bytes * problem.c))
    images = max(1, most // (vectors + 1))
    if isinstance(problem.n, int):
        images = min(images, problem.n)
    return images, ceildiv(vectors, max(most, 1))


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel."""
    _Kernel(problem, m, memory).write()


class _Kernel:
    def __init__(self, problem: ConvProblem, m: Machine, memory: Memory) -> None:
        self.problem, self.machine, self.memory = problem, m, memory
        self.x, self.y = memory.flat("data"), memory.flat("grad")
        self.x_step, self.y_step = memory.strides("data"), memory.strides("grad")
        self.lanes = m.lanes(memory.accum)
        self.pixels = math.prod(problem.spatial)
        self.vectors = self.pixels // self.lanes
        self.height = _height(m)
        self.images, self.pieces = _unit(problem, m)
        self.tiles = ceildiv(problem.k, self.height)

    def write(self) -> None:
        p = self.problem
        weight, panels = self.memory.panels("I", 1, p.c, p.k, _WIDTH)
        units = ceildiv(p.n, self.images) * self.pieces
        splits, chunks = self._cut(panels.size, units if isinstance(units, int) else None)
        with (
            parts_of(weight, self.memory, panels.size, splits, _WIDTH) as parts,
            parallel(splits, chunks) as (part, chunk),
        ):
            slab = bind(part * panels.size)
            first, last = (bind(x) for x in share(chunk, self.tiles, chunks))
            with (
                serial(panels.blocks) as b,
                serial(T.min(int64(last * self.height), int64(p.k)), first * self.height) as k,
            ):
                at = bind(slab + panels.at(0, b, 0, 0) + k * _WIDTH)
                value = zero(self.memory.accum, _WIDTH)
                T.buffer_store(parts, value, [vector(at, _WIDTH)])
            begin, end = share(part, units, splits)
            with (
                serial(end, begin) as unit,
                serial(last, first) as t,
                serial(panels.blocks) as b,
            ):
                for rows, there in heights(p.k, self.height, t):
                    with when(there):
                        at = bind(slab + panels.at(0, b, 0, 0) + t * self.height * _WIDTH)
                        self._sums(parts, at, unit, t, b, rows)
        self.memory.move_weight(weight, panels, False)

    def _cut(self, size: int, units: int | None) -> tuple[int, int]:
        """(parts of the units, chunks of rows of y), by the cycles of the core with most to do."""
        p, m, bytes_ = self.problem, self.machine, DTYPE_BYTES[self.memory.accum]
        count = units or m.cores
        most = max(1, min(count, m.most_parts, (16 << 20) // (size * bytes_)))
        length = ceildiv(self.vectors * self.images, self.pieces)
        blocks = ceildiv(p.c, _WIDTH)

        def cycles(cut: tuple[int, int]) -> float:
            splits, chunks = cut
            tiles = ceildiv(self.tiles, chunks)
            products = tiles * blocks * (length * self.height * _WIDTH / 2 + TILE)
            read = length * self.lanes * bytes_ * (p.c + tiles * self.height) / SHARED
            sums = (splits + 1) * size * PART / m.cores if splits > 1 else 0.0
            rounds = m.rounds(splits * chunks)
            return rounds * ceildiv(count, splits) * (products + read) + sums

        chunks = range(1, min(self.tiles, m.most_parts) + 1)
        return min(itertools.product(range(1, most + 1), chunks), key=cycles)

    def _sums(self, parts: Expr, at: Expr, unit: Expr, t: Expr, b: Expr, rows: int) -> None:
        """Adds a tile's sums over one unit."""
        p, lanes, accum = self.problem, self.lanes, self.memory.accum
        acc = local("acc", rows * _WIDTH * lanes, accum)
        for i in range(rows * _WIDTH):
            T.buffer_store(acc, zero(accum, lanes), [vector(i * lanes, lanes)])
        xs = [
            bind(T.min(int64(b * _WIDTH + j), int64(p.c - 1)) * self.x_step["C"])
            for j in range(_WIDTH)
        ]
        group, piece = bind(unit // self.pieces), bind(unit % self.pieces)
        first = bind(group * self.images)
        begin, end = (bind(v) for v in share(piece, self.vectors, self.pieces))
        with serial(T.min(int64(first + self.images), int64(p.n)), first) as n:
            x, y = bind(n * self.x_step["N"]), bind(n * self.y_step["N"])
            y = bind(y + t * self.height * self.y_step["C"])

            def products(pixel: Expr, some: int) -> None:
                ys = [
                    self._pixels(self.y, y + i * self.y_step["C"] + pixel, some)
                    for i in range(rows)
                ]
                for j, row in enumerate(xs):
                    value = self._pixels(self.x, x + row + pixel, some)
                    for i in range(rows):
                        place = vector((i * _WIDTH + j) * lanes, lanes)
                        T.buffer_store(acc, acc[place] + ys[i] * value, [place])

            with serial(end, begin) as v:
                products(v * lanes, lanes)
            if rest := self.pixels % lanes:
                with when(True if self.pieces == 1 else piece == self.pieces - 1):
                    products(self.pixels - lanes, rest)
        for i in range(rows):
            place = vector(at + i * _WIDTH, _WIDTH)
            each = [acc[vector((i * _WIDTH + j) * lanes, lanes)] for j in range(_WIDTH)]
            T.buffer_store(parts, parts[place] + _added_up(each, lanes), [place])

    def _pixels(self, tensor: Expr, at: Expr, some: int) -> Expr:
        """A vector of pixels, of which the last `some` count and the others are zeros."""
        lanes = self.lanes
        value = bind(tensor[vector(at, lanes)])
        if some == lanes:
            return value
        chosen = [i if i < lanes - some else lanes + i for i in range(lanes)]
        return bind(tirx.Shuffle([zero(self.memory.accum, lanes), value], chosen))


def _added_up(vectors: Sequence[Expr], lanes: int) -> Expr:
    """The sum of the lanes of each vector, in a vector: two become one of half the distance."""
    found, length = list(vectors), lanes  # of what is to be added up, in each vector
    while length > 1:
        half, step = length // 2, min(2, len(found))
        low = [start + i for start in range(0, step * lanes, length) for i in range(half)]
        high = [i + half for i in low]
        pairs = [found[i : i + step] for i in range(0, len(found), step)]
        found = [bind(tirx.Shuffle(pair, low) + tirx.Shuffle(pair, high)) for pair in pairs]
        length, lanes = half, len(low)
    return found[0]
