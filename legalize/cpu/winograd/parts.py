"""Winograd's transforms of a tile's vectors of channels, from memory to memory.

Each is written out, hundreds of statements that are the same whatever the sizes: a part of its
kernel, compiled once for all of them (`relay_wgrad.building.parts`).  They were half of what
LLVM took for such convolutions; a call is one for some hundred cycles of work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.building.parts import part
from relay_wgrad.problem import ConvProblem

from ..emitters.loops import Expr, bind, int64, vector, when, zero
from ..emitters.memory import Image
from .algorithm import SIZE, TILE, A, B, G, Matrix, Place, gather, spread, twice

_NAMES = {A: "A", B: "B", G: "G"}
_CHANNELS = 128  # from which on a kernel's products are most of its time


@dataclass(frozen=True)
class Points:
    """A number for each pair of points, `step` after the last one's."""

    buffer: Expr
    at: Expr
    step: Expr

    def place(self, i: int, j: int, lanes: int) -> Expr:
        return vector(self.at + (i * SIZE + j) * self.step, lanes)

    def arguments(self) -> list[Any]:
        return [tirx.address_of(self.buffer[int64(self.at)]), int64(self.step)]


@dataclass(frozen=True)
class Window:
    """Neighbours in two dimensions: (i, j) is i * steps[0] + j * steps[1] after `at`.

    bounds : (row, column, rows, columns) of a window within an image whose first pixel is at `at`;
        what is outside of it is zeros, and not written.  Without, all is there.
    """

    buffer: Expr
    at: Expr
    steps: tuple[Expr, Expr]
    bounds: tuple[Expr, Expr, Expr, Expr] | None = None

    def arguments(self) -> list[Any]:
        numbers = map(int64, (*self.steps, *(self.bounds or ())))
        return [tirx.address_of(self.buffer[int64(self.at)]), *numbers]

    def axes(self, count: int) -> list[list[tuple[Expr, Expr]]]:
        """(where it is, whether it exists) of each row, and of each column."""
        first = self.bounds[:2] if self.bounds else (0, 0)
        sizes = self.bounds[2:] if self.bounds else (None, None)
        return [
            [
                (bind((start + i) * step),
                 True if size is None else bind(tirx.all(start + i >= 0, start + i < size)))
                for i in range(count)
            ]
            for start, step, size in zip(map(int64, first), self.steps, sizes, strict=True)
        ]  # fmt: skip


def window(
    image: Image, place: Place, channel: Expr, size: Sequence[int], exists: Expr = True
) -> Window:
    """The pixels from `place` on of an image of that size; none of one that does not exist."""
    n, plane, row, column = place
    height = size[0] if exists is True else bind(tirx.Select(exists, int64(size[0]), int64(0)))
    at = bind(image.at(n, 0, 0, 0, plane) + channel)
    return Window(image.buffer, at, (image.h_step, image.w_step), (row, column, height, size[1]))


def written(image: Image, place: Place, channel: Expr, size: Sequence[int]) -> Window:
    """A tile's results from `place` on, in an image of that size."""
    if any(n % TILE for n in size):
        return window(image, place, channel, size)
    n, plane, row, column = place
    at = bind(image.at(n, row, column, 0, plane) + channel)
    return Window(image.buffer, at, (image.h_step, image.w_step))


@dataclass(frozen=True)
class Transforms:
    """Those of one kernel.

    are_parts : whether they are compiled apart.  With few channels they are much of its time, and
        steps that are arguments cost them a twentieth.
    """

    lanes: int
    are_parts: bool

    @staticmethod
    def of(problem: ConvProblem, lanes: int) -> Transforms:
        return Transforms(lanes, min(problem.c, problem.k) >= _CHANNELS)

    def _part(
        self, name: str, arguments: Sequence[Any], make: Callable[..., None]
    ) -> AbstractContextManager[None]:
        return part(name, arguments, make) if self.are_parts else nullcontext()

    def evaluate(self, matrix: Matrix, source: Window, target: Points) -> None:
        """A window's values at all points."""
        lanes = self.lanes

        def write(source: Window, target: Points) -> None:
            rows, columns = source.axes(len(matrix[0]))

            def read(row: tuple[Expr, Expr], column: tuple[Expr, Expr]) -> Expr:
                value = source.buffer[vector(source.at + row[0] + column[0], lanes)]
                if source.bounds is None:
                    return bind(value)
                exists = tirx.all(row[1], column[1])
                return bind(T.if_then_else(exists, value, zero("float32", lanes)))

            values = [[read(row, column) for column in columns] for row in rows]
            for i, line in enumerate(twice(spread, matrix, values, lanes)):
                for j, value in enumerate(line):
                    T.buffer_store(target.buffer, value, [target.place(i, j, lanes)])

        def make(buffer: Expr, *rest: Expr) -> None:
            *numbers, points, step = rest
            for each in _windows(buffer, numbers, len(matrix[0])):
                write(each, Points(points, int64(0), step))

        bounded = "_bounded" if source.bounds else ""
        name = f"winograd_evaluate_{_NAMES[matrix]}_{lanes}{bounded}"
        with self._part(name, [*source.arguments(), *target.arguments()], make):
            write(source, target)

    def combine(
        self, matrix: Matrix, source: Points, target: Window, is_first: Expr = True
    ) -> None:
        """What the products at all points add up to, by the transposed matrix.

        is_first : whether it is written, and not added.
        """
        adds, lanes = is_first is not True, self.lanes

        def write(source: Points, target: Window, is_first: Expr) -> None:
            values = [
                [bind(source.buffer[source.place(i, j, lanes)]) for j in range(SIZE)]
                for i in range(SIZE)
            ]
            sums = twice(gather, matrix, values, lanes)
            rows, columns = target.axes(len(sums))
            for (i, (row, there)), (j, (column, here)) in itertools.product(
                enumerate(rows), enumerate(columns)
            ):
                place = vector(target.at + row + column, lanes)
                with when(tirx.all(there, here) if target.bounds else True):
                    value = sums[i][j]
                    if adds:
                        before = T.if_then_else(
                            is_first, zero("float32", lanes), target.buffer[place]
                        )  # fmt: skip
                        value = before + value
                    T.buffer_store(target.buffer, value, [place])

        def make(points: Expr, step: Expr, buffer: Expr, *numbers: Expr) -> None:
            first = numbers[-1] != 0 if adds else True
            for each in _windows(buffer, numbers[:-1] if adds else numbers, len(matrix[0])):
                write(Points(points, int64(0), step), each, first)

        how = f"{'_bounded' if target.bounds else ''}{'_added' if adds else ''}"
        first = [tirx.Select(is_first, int64(1), int64(0))] if adds else []
        arguments = [*source.arguments(), *target.arguments(), *first]
        with self._part(f"winograd_combine_{_NAMES[matrix]}_{lanes}{how}", arguments, make):
            write(source, target, is_first)


def _windows(buffer: Expr, numbers: Sequence[Expr], count: int) -> Iterator[Window]:
    """A part's window of `count` x `count`: as one that is all there, under that condition, and as
    one that may not be.  Most of an image's are, and a test of each pixel takes as long as it."""
    *steps, row, column, height, width = numbers if len(numbers) > 2 else [*numbers, *[None] * 4]
    down, right = steps
    if row is None:
        yield Window(buffer, int64(0), (down, right))
        return
    ends = row + count <= height, column + count <= width
    with T.If(tirx.all(row >= 0, column >= 0, *ends)):
        with T.Then():
            yield Window(buffer, bind(row * down + column * right), (down, right))
        with T.Else():
            yield Window(buffer, int64(0), (down, right), (row, column, height, width))
