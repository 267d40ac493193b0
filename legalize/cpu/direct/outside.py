"""fprop and dgrad of 1x1 where channels are outside: of each image Y[K, P] = W[K, C] X[C, P].

Pixels are innermost in both activations, so they fill the vectors, and weights are scalars: nothing
is transposed.  A task has some tiles of an image's pixels.  It copies what it reads of them to
panels [tile][channel][pixel], so that a sum runs through memory and not over rows that are an
image's pixels apart, whose lines would compete for the same places of a cache.  With 32 registers
its products ask for the lines that the next task copies and for those that the next tile is
written to, as they come from beyond the level-2 cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...quotient import share
from ..emitters.loops import (
    Expr,
    bind,
    ceildiv,
    head,
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
from ..emitters.memory import NO_BORDER, Memory, Panels
from ..machine import Machine

VECTORS = 3  # of a tile's row
MOVED = 0.25  # vectors' multiply-adds in the time of an element that is transposed; measured
# Level-1 caches that a group's pixels take.  Of fewer a row's results are short runs; more leave no
# room in the level-2 cache for the lines that are asked for.  Measured.
_NEAR = 2


def is_product(problem: ConvProblem) -> bool:
    """Whether a problem, of any kind, is such a product of tensors in the sums' dtype."""
    p = problem
    plain = p.r == p.s == 1 and p.strides == (1, 1) and p.padding == NO_BORDER and p.groups == 1
    return plain and all(
        p.layout(role).endswith("HW") and p.dtype(role) == p.accum_dtype
        for role in ("data", "grad")
    )


def pays(problem: ConvProblem, m: Machine) -> bool:
    """Whether fprop or dgrad is such a product, and less work than with channels inside: lanes idle
    behind an image's last pixel, but no element changes its place."""
    p = problem
    if p.kind is ConvKind.WGRAD or not is_product(p):
        return False
    lanes, pixels = m.lanes(p.accum_dtype), math.prod(p.spatial)
    idle = -pixels % lanes * p.c * p.k
    reduced = p.canonical_shape(p.roles[0])[1]
    fits = reduced * VECTORS * m.vector_bytes <= m.l2_bytes  # what a tile reads
    return bool(fits and idle <= lanes * MOVED * (p.c + p.k) * pixels)


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel."""
    Product(problem, m, memory).write()


@dataclass(frozen=True)
class PixelTile:
    """Vectors of a row, of which the last has `last` pixels that exist; `there`: the condition."""

    vectors: int
    last: int
    there: Expr


@dataclass(frozen=True)
class _Ahead:
    """The next group's pixels: where they begin, lines of a run, lines that a tile asks for."""

    begin: Expr
    line: int
    lines: int


class Product:
    """The loops.  `copy` and `store` read and write pixels, which lie in `runs` of the operand."""

    def __init__(
        self, problem: ConvProblem, m: Machine, memory: Memory, vectors: int = VECTORS
    ) -> None:
        self.problem, self.machine, self.memory = problem, m, memory
        operand, _, result = problem.roles
        self.x, self.y = memory.flat(operand), memory.flat(result)
        self.x_step, self.y_step = memory.strides(operand), memory.strides(result)
        self.reduced = problem.canonical_shape(operand)[1]
        self.channels = problem.canonical_shape(result)[1]
        self.lanes, self.line = m.lanes(memory.accum), m.line(memory.accum)
        self.bytes = DTYPE_BYTES[memory.accum]
        self.pixels = math.prod(problem.spatial)
        # A power of two, as copies of weights transpose squares.
        self.rows = min(4 if m.has_few_registers else 8, 1 << (self.channels - 1).bit_length())
        self.width = min(vectors, ceildiv(self.pixels, self.lanes)) * self.lanes
        self.tiles = ceildiv(self.pixels, self.width)
        self.runs = self.reduced
        self.is_scattered = False  # whether a tile's results are not a row of each channel

    def write(self) -> None:
        lane = "I" if self.problem.kind is ConvKind.DGRAD else "O"
        panels = self.memory.copied_panels(lane, 1, self.channels, self.reduced, self.rows)
        weight = self.memory.copied_weight(panels, False)
        groups, parts = self._sizes(panels)
        each, many = panels.blocks // parts, ceildiv(self.tiles, groups)
        with parallel(self.problem.n, groups, parts) as (n, group, part):
            begin, end = share(group, self.tiles, groups)
            first = bind(begin)
            count = bind(end - first)
            copied = local("pixels", many * self.reduced * self.width, self.memory.accum)
            self.copy(copied, n, first, count)
            # A block's rows are written for all tiles: memory is far, and rows are far apart.
            ahead = self._ahead(n, group, groups, first + count, many * panels.blocks)
            to_rows = self.rows * self.y_step["C"]
            with serial(each) as i, serial(count) as t:
                block = bind(part * each + i)
                number = bind(block * many + t)
                # The next tile that is written: of the same rows, or the first of the next rows.
                after = bind(
                    T.if_then_else(t + 1 < count, int64(self.width), to_rows - t * self.width)
                )
                for tile in self._tiles(first + t):
                    with when(tile.there):
                        where = n, first, t, block, number
                        self._sums(copied, weight, panels, where, tile, after, ahead)

    def _sizes(self, panels: Panels) -> tuple[int, int]:
        """(groups of an image's tiles, parts of the blocks of channels): a group's pixels are near
        the level-1 cache, and there are as many tasks as have even work."""
        bytes_, m = self.reduced * self.width * self.bytes, self.machine
        near = m.l2_bytes // 4 if m.has_few_registers else _NEAR * m.l1_bytes
        groups = ceildiv(self.tiles, max(1, near // bytes_))
        images = self.problem.n
        tasks = groups * (images if isinstance(images, int) else 1)
        fair = [x for x in range(1, panels.blocks + 1) if panels.blocks % x == 0]
        return groups, next((x for x in fair if m.is_even(tasks * x, some=2)), panels.blocks)

    def place(self, n: Expr, tile: Expr) -> Expr:
        """Where an image's first run of a tile's pixels begins in the operand."""
        return n * self.x_step["N"] + tile * self.width

    def run(self, number: Expr) -> Expr:
        """How far behind the first run another begins."""
        return number * self.x_step["C"]

    def length(self, tiles: int) -> int:
        """Of a run of some tiles."""
        return tiles * self.width

    def _ahead(self, n: Expr, group: Expr, groups: int, end: Expr, sums: int) -> _Ahead | None:
        """What the next group's pixels take in memory, of this image from tile `end` on or of the
        next one; a group has so many `sums` of tiles."""
        if self.machine.has_few_registers:
            return None
        begin = self.place(T.min(int64(n + 1), int64(self.problem.n - 1)), 0)
        if groups > 1:
            here = self.place(n, end)
            begin = T.if_then_else(group < groups - 1, int64(here), int64(begin))
        line = ceildiv(self.length(ceildiv(self.tiles, groups)), self.line)
        return _Ahead(bind(begin), line, ceildiv(line * self.runs, sums))

    def _tiles(self, number: Expr) -> list[PixelTile]:
        """The shapes that tile `number` may have."""
        vectors, rest = self.width // self.lanes, self.pixels % self.width
        full = PixelTile(vectors, self.lanes, True)
        if not rest:
            return [full]
        of_rest = ceildiv(rest, self.lanes)
        last = rest - (of_rest - 1) * self.lanes
        if self.tiles == 1:
            return [PixelTile(of_rest, last, True)]
        at = self.tiles - 1
        return [PixelTile(vectors, self.lanes, number < at), PixelTile(of_rest, last, number >= at)]

    def copy(self, copied: Expr, n: Expr, first: Expr, count: Expr) -> None:
        """copied[t, c, p] = x[n, c, pixel p of tile first + t], with zeros up to a whole vector."""
        lanes = self.lanes
        with serial(self.reduced) as c:
            source = bind(n * self.x_step["N"] + c * self.x_step["C"] + first * self.width)
            with serial(count) as t:
                here = bind(source + t * self.width)
                to = bind((t * self.reduced + c) * self.width)
                for tile in self._tiles(first + t):
                    with when(tile.there):
                        for v in range(tile.vectors):
                            some = tile.last if v == tile.vectors - 1 else lanes
                            if some < lanes:
                                T.buffer_store(
                                    copied, zero(self.memory.accum, lanes),
                                    [vector(to + v * lanes, lanes)],
                                )  # fmt: skip
                            T.buffer_store(
                                copied, self.x[vector(here + v * lanes, some)],
                                [vector(to + v * lanes, some)],
                            )  # fmt: skip

    def _ask(
        self, ahead: _Ahead, number: Expr, step: tuple[Expr, int], after: Expr, vectors: int
    ) -> None:
        """A step's share of the lines that a tile asks for."""
        i, steps = step
        for j in range(ceildiv(ahead.lines, steps)):
            line = bind(number * ahead.lines + i + j * steps)
            run = bind(T.min(int64(line // ahead.line), int64(self.runs - 1)))
            place = self.run(run) + line % ahead.line * self.line
            prefetch(self.x, ahead.begin + place, level=2)
        if self.is_scattered:
            return
        row, total = self.y_step["C"], self.rows * vectors
        some = ceildiv(total, steps)
        for j in range(some):
            line = bind(T.min(int64(i * some + j), int64(total - 1)))
            place = line // vectors * row + line % vectors * self.lanes
            prefetch(self.y, after + place, level=2)

    def _sums(
        self, copied: Expr, weight: Expr, panels: Panels, where: tuple[Expr, ...], tile: PixelTile,
        after: Expr, ahead: _Ahead | None,
    ) -> None:  # fmt: skip
        """A block of channels of one tile; the next one is written `after` this one's place."""
        n, first, t, block, number = where
        lanes, accum = self.lanes, self.memory.accum
        size = tile.vectors * lanes
        row = self.y_step["C"]
        place = n * self.y_step["N"] + block * (self.rows * row)
        target = bind(place + (first + t) * self.width)
        acc = local("acc", self.rows * size, accum)
        for i in range(self.rows * tile.vectors):
            T.buffer_store(acc, zero(accum, lanes), [vector(i * lanes, lanes)])
        panel = bind(panels.at(0, block, 0, 0))
        source = bind(t * (self.reduced * self.width))

        def products(c: Expr) -> None:
            at = bind(source + c * self.width)
            pixels = [copied[vector(at + v * lanes, lanes)] for v in range(tile.vectors)]
            weights = [weight[panel + c * self.rows + i] for i in range(self.rows)]
            outer(acc, lanes, weights, pixels)

        steps = min(ahead.lines, self.reduced) if ahead else 0
        each = self.reduced // steps if steps else 0
        if ahead:
            with serial(steps) as i:
                self._ask(ahead, number, (i, steps), bind(target + after), tile.vectors)
                with serial(each) as c:
                    products(i * each + c)
        if steps * each < self.reduced:
            with serial(self.reduced, steps * each) as c:
                products(c)
        for rows, there in panels.widths(block):
            with when(there):
                self.store(acc, tile, rows, (n, first + t, block), target)

    def store(
        self, acc: Expr, tile: PixelTile, rows: int, where: tuple[Expr, ...], target: Expr
    ) -> None:
        """Writes the sums of some rows of a tile: (image, tile, block of channels), in place from
        `target` on."""
        lanes, row, size = self.lanes, self.y_step["C"], tile.vectors * self.lanes
        for i in range(rows):
            for v in range(tile.vectors):
                some = tile.last if v == tile.vectors - 1 else lanes
                value = head(acc[vector(i * size + v * lanes, lanes)], lanes, some)
                T.buffer_store(self.y, value, [vector(target + i * row + v * lanes, some)])
