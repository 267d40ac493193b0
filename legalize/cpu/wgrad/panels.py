"""A unit of pixels of wgrad's operands as panels, whose products `packed` adds up.

The gradient is [block of k][pixel][lanes], the data of one tap [tile of c][pixel][row of the tile].
Pixels are ordered (row, image, column), so the rows that a tap reaches are one run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvProblem

from ..emitters.loops import Expr, bind, int64, serial, vector, when, zero
from ..emitters.memory import Image
from .pixels import Pixels, at_least, reach


@dataclass(frozen=True)
class Unit:
    """Some of the gradient's pixels, and a group: where they begin and how many there are."""

    n: Expr
    p: Expr
    g: Expr
    images: Expr
    rows: Expr
    columns: Expr

    def pixel(self, row: Expr, image: Expr) -> Expr:
        """The place of a row's first pixel in a panel."""
        return (row * self.images + image) * self.columns


def unit_of(pixels: Pixels, number: Expr, g: Expr) -> Unit:
    """One by its number."""
    _, units_p = pixels.units
    n = bind(number // units_p * pixels.images)
    p = bind(number % units_p * pixels.rows)
    if pixels.total is not None:
        columns = bind(T.min(int64(pixels.q), pixels.total - p * pixels.q))
        return Unit(n, p, g, 1, 1, columns)
    images, rows = pixels.images, pixels.rows
    if not isinstance(pixels.n, int) or pixels.n % images:
        images = bind(T.min(int64(images), pixels.n - n))
    if pixels.p % rows:
        rows = bind(T.min(int64(rows), pixels.p - p))
    return Unit(n, p, g, images, rows, pixels.q)


@dataclass(frozen=True)
class Panel:
    """An operand of products, in panels or in place: its first pixel and the step to the next."""

    buffer: Expr
    at: Expr
    step: Expr


@dataclass(frozen=True)
class Run:
    """Pixels of a panel that a tap reaches: `lines` of `count`, the first at `first`."""

    lines: Expr
    first: Expr
    count: Expr
    step: Expr  # from line to line


@dataclass(frozen=True)
class Packing:
    """Copies of operands: of chunks of filters in blocks, of channels in tiles.

    blocks, tiles : how many there are.  block, height : their filters and channels.  y_step, x_step
    : elements from a block's panel to the next, and from a tile's.  lanes : of a vector.  is_run :
    whether all pixels of both operands are one run.
    """

    problem: ConvProblem
    accum: str
    lanes: int
    blocks: int
    tiles: int
    block: int
    height: int
    y_step: int
    x_step: int
    is_run: bool

    @property
    def filters(self) -> int:
        return self.problem.k // self.problem.groups

    @property
    def channels(self) -> int:
        return self.problem.c // self.problem.groups

    def grad(self, y: Image, panels: Expr, unit: Unit, blocks: tuple[Expr, Expr]) -> None:
        """The unit's gradient of a chunk of k; filters that are missing in a block are zeros."""
        with serial(unit.rows) as row, serial(unit.images) as image:
            source = bind(y.at(unit.n + image, unit.p + row, 0, unit.g) + blocks[0] * self.block)
            target = bind(unit.pixel(row, image) * self.block)
            with serial(unit.columns) as q:
                here, there = bind(source + q * y.w_step), bind(target + q * self.block)

                def copy(b: Expr, count: int) -> None:
                    places = here + b * self.block, there + b * self.y_step
                    self._copy(y.buffer, panels, *places, count)
                    self._zeros(panels, places[1], count, self.block)

                self._each(blocks, self.blocks, self.block, self.filters, copy)

    def data(
        self, x: Image, panels: Expr, unit: Unit, tap: tuple[Expr, Expr],
        tiles: tuple[Expr, Expr],
    ) -> Run:  # fmt: skip
        """A tap's data of a chunk of c; returns the pixels that it reaches."""
        problem, height = self.problem, self.height
        (low, high), (left, right) = self._reached(unit, tap)
        strides, dilation = problem.strides, problem.dilation
        shift = [tap[i] * dilation[i] - problem.padding[i] for i in range(2)]
        with serial(high, low) as row, serial(unit.images) as image:
            line = (unit.p + row) * strides[0] + shift[0]
            source = bind(x.at(unit.n + image, line, shift[1], unit.g) + tiles[0] * height)
            target = bind(unit.pixel(row, image) * height)

            with serial(right, left) as q:
                here = bind(source + q * (strides[1] * x.w_step))
                there = bind(target + q * height)

                def copy(t: Expr, count: int) -> None:
                    self._copy(x.buffer, panels, here + t * height, there + t * self.x_step, count)

                self._each(tiles, self.tiles, height, self.channels, copy)

        first, last = unit.pixel(low, 0), unit.pixel(high, 0)
        if isinstance(left, int):  # all columns: one line
            return Run(1, bind(first), bind(last - first), 0)
        # One long line if this tap reaches all columns, which is faster.
        lines, whole = bind((high - low) * unit.images), right - left == unit.columns
        count = T.if_then_else(whole, int64(lines * unit.columns), int64(right - left))
        lines = bind(T.if_then_else(whole, int64(1), int64(lines)))
        return Run(lines, bind(first + left), bind(count), unit.columns)

    def _reached(
        self, unit: Unit, tap: tuple[Expr, Expr]
    ) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
        """(begin, end) of the unit's rows and of its columns that a tap reaches."""
        problem = self.problem
        rows, columns = (0, unit.rows), (0, unit.columns)
        if self.is_run:
            return rows, columns
        low, high = reach(problem, 0, tap[0], problem.p)
        if (low, high) != (0, problem.p):
            begin = bind(T.max(low - unit.p, 0))
            rows = begin, at_least(T.min(high - unit.p, int64(unit.rows)), begin)
        low, high = reach(problem, 1, tap[1], problem.q)
        if (low, high) != (0, problem.q):
            begin = bind(T.min(low, problem.q))
            columns = begin, at_least(high, begin)
        return rows, columns

    def _each(
        self, chunk: tuple[Expr, Expr], total: int, size: int, elements: int,
        copy: Callable[[Expr, int], None],
    ) -> None:  # fmt: skip
        """Copies the panels of a chunk: (number in the chunk, elements), the last may be short."""
        begin, end = chunk
        rest = elements % size
        if not rest:
            with serial(end - begin) as number:
                copy(number, size)
            return
        full = (
            total - 1 - begin
            if isinstance(end, int)
            else bind(T.min(end, int64(total - 1)) - begin)
        )
        with serial(full) as number:
            copy(number, size)
        with when(True if isinstance(end, int) else end == total):
            copy(full, rest)

    def _copy(self, source: Expr, target: Expr, here: Expr, there: Expr, count: int) -> None:
        here, there = bind(here), bind(there)
        for start, lanes in _pieces(0, count, self.lanes):
            value = source[vector(here + start, lanes)]
            T.buffer_store(target, value, [vector(there + start, lanes)])

    def _zeros(self, target: Expr, there: Expr, begin: int, end: int) -> None:
        for start, lanes in _pieces(begin, end, self.lanes):
            T.buffer_store(target, zero(self.accum, lanes), [vector(there + start, lanes)])


def _pieces(start: int, end: int, lanes: int) -> list[tuple[int, int]]:
    """(start, elements) of vectors that cover a range; the length of each is a power of two."""
    found = []
    while start < end:
        while lanes > end - start:
            lanes //= 2
        found.append((start, lanes))
        start += lanes
    return found
