"""fprop and dgrad of bfloat16: rows of a tile are pixels that follow each other at one step.

A step's sums are those of 32 channels, and stay where they are over all taps and channels: with AMX
in 2 x 2 tiles, of two tiles of pixels, four products for four loads; else in registers, of one tile
of as many pixels as these have room for.  Pixels are read where they are, at any step.  A tile
never crosses the end of a row: it has as many pixels as divide a row best, and the last of a row
begins so early that it is whole, and computes some results a second time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...quotient import quotient, share
from ..emitters.axes import Axis, Taps
from ..emitters.loops import (
    Expr,
    bind,
    ceildiv,
    conjunction,
    digits,
    int64,
    local,
    parallel,
    prefetch,
    serial,
    vector,
    view,
    when,
    zero,
)
from ..emitters.memory import NO_BORDER, Activation, Image, Memory
from ..emitters.tiles import cache_sets_conflict, tile_rows
from ..machine import Machine
from . import pairs
from . import tiles as matrix
from .panels import PAIR_BITS, Panels, pack
from .tiles import PAIR, ROWS, SUMS, TERMS
from .work_split import Work, best_split, run_length

_LEAST = 8  # channels of one of several groups
_BLOCK = 2 * SUMS  # channels of a step's sums
# Lines of pixels that a step of a block asks for, at most: more would take all of a core's buffers
# at once, and prefetchers see the order of pixels with so many channels.
_MOST_READ = 16
_GAIN = 0.7  # of a step's products, to which filling up must bring them: it takes a copy


def applies(problem: ConvProblem) -> bool:
    """Whether both operands are bfloat16, of channels enough, and the result can be written."""
    first, second, result = problem.roles
    dtype, last = problem.dtype(result), problem.layout(result)[-1] == "C"
    few = min(problem.c, problem.k) // problem.groups
    return (
        problem.is_static
        and problem.dtype(first) == problem.dtype(second) == "bfloat16"
        and (problem.kind is ConvKind.WGRAD or dtype == "bfloat16" or (dtype == "float32" and last))
        and (problem.groups == 1 or few >= _LEAST)
    )


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel: operands in, core, result out."""
    dgrad = problem.kind is ConvKind.DGRAD
    operand, _, result = problem.roles
    groups = problem.groups
    size, out = problem.canonical_shape(operand), problem.canonical_shape(result)
    axes = [
        Axis(
            dgrad, size[2 + i], out[2 + i], problem.canonical_shape("weight")[2 + i],
            problem.strides[i], problem.dilation[i], problem.padding[i],
        )
        for i in (0, 1)
    ]  # fmt: skip
    (top, bottom), (left, right) = (axis.border() for axis in axes)
    border = (top, left, bottom, right)
    follow = 1
    if groups == 1 and axes[1].phases == 1:
        follow, _ = axes[1].taps(0).as_terms(1, 1)
    filled = _filled(size[1] // groups, follow if m.has_tiles else 0)
    panels = Panels(groups, out[1] // groups, filled, problem.r, problem.s)
    weight = pack(problem, memory, panels)
    read = memory.operand(operand, groups, size[1] // groups, border=border, block=filled)
    written = memory.result(groups, out[1] // groups)
    if problem.layout(result)[-1] == "C":
        written = replace(written, is_copied=False)
    batch = memory.batch(read, written)
    height, width = out[2:]
    merged, asked = False, [False, False]
    if problem.r == problem.s == 1 and problem.strides == (1, 1) and problem.padding == NO_BORDER:
        merged = all(x.is_dense(batch.images, height, width) for x in batch.tensors)
        if all(x.has_dense_rows(width) for x in batch.tensors):
            height, width = 1, height * width * (batch.images if merged else 1)
            asked = [groups == 1 and _is_far(problem, m, one) for one in (read, written)]
            axes = [Axis(False, length, length, 1, 1, 1, 0) for length in (height, width)]
    core = (_Tiles if m.has_tiles else _Pairs)(problem, m, axes, panels, asked)
    with used(m), batch.each() as (_, count, (x, y)):
        core.write(x, y, weight, 1 if merged else count)


@contextmanager
def used(m: Machine) -> Iterator[None]:
    """The scope in a kernel of the machine's instructions for bfloat16."""
    if not m.has_tiles:
        with pairs.imported():
            yield
        return
    matrix.TILES.permit()
    yield


def _chunk(length: int) -> int:
    """Terms of a product: an even divisor."""
    return max(x for x in range(2, TERMS + 1, 2) if length % x == 0)


def _filled(channels: int, follow: int) -> int:
    """Channels with as many more as lead to fewer products, where `follow` taps are one sum; an
    even number with 0."""
    even = ceildiv(channels, 2) * 2
    if not follow:
        return even

    def products(each: int) -> int:
        return each * follow // _chunk(each * follow)

    more = sorted({ceildiv(channels, x) * x for x in (4, 8, 16, TERMS)}, key=products)
    return more[0] if products(more[0]) <= _GAIN * products(even) else even


def _is_far(problem: ConvProblem, m: Machine, tensor: Activation) -> bool:
    """Whether the caller's tensor is used, and is more than a level-2 cache holds; however many
    cores there are, another one may have written it."""
    size = math.prod(problem.shape(tensor.role)) * DTYPE_BYTES[problem.dtype(tensor.role)]
    return not tensor.is_copied and size > m.l2_bytes


@contextmanager
def _runs(begin: Expr, end: Expr, run: int) -> Iterator[tuple[Expr, Expr]]:
    """A loop over runs of `run` steps: (first, last but one); all are one run with 0."""
    if not run:
        yield begin, end
        return
    with serial(quotient(end - begin + (run - 1), run)) as number:
        first = bind(begin + number * run)
        yield first, bind(T.min(int64(first + run), int64(end)))


@dataclass(frozen=True)
class _Ahead:
    """Lines that are asked for in the order of memory, a `share` at each step: those to be written
    for the level-1 cache, since stores that miss it commit one by one."""

    image: Image
    share: int
    line: int  # in elements
    is_written: bool

    def step(self, start: Expr, number: Expr) -> None:
        level = 1 if self.is_written else 2
        at = bind(start + number * (self.share * self.line))
        with serial(self.share) as i:
            place = at + i * self.line
            prefetch(self.image.buffer, place, write=self.is_written, level=level)


class _Core:
    """Steps of some tiles of pixels, times 32 channels."""

    cycles: int  # of a step's products of 32 terms

    def __init__(
        self, problem: ConvProblem, m: Machine, axes: list[Axis], panels: Panels, asked: list[bool],
        most: int, count: int,
    ) -> None:  # fmt: skip
        """`asked` : whether lines of the pixels, of the results are asked for before they are
        needed; they follow each other in memory.  `most` : pixels of a tile; `count` : tiles of a
        step."""
        self.machine = m
        self.axes = axes
        self.panels = panels
        self.asked = asked
        self.dtype = problem.dtype(problem.roles[2])
        length = axes[1].count
        self.rows = ceildiv(length, ceildiv(length, most))  # of a tile: pixels
        self.count = count
        self.blocks = ceildiv(panels.blocks, 2)

    def write(self, x: Image, y: Image, weight: Expr, images: int) -> None:
        rows, columns = self.axes
        size = (images, rows.count, ceildiv(columns.count, self.rows))
        total = math.prod(size)
        steps = ceildiv(total, self.count)
        work = self._work(steps)
        groups, parts = best_split(work, self.machine)
        each = ceildiv(self.blocks, parts)
        run = self._run(replace(work, blocks=each))
        asks = self._ahead(x, y, each) if run else []
        length = self.panels.reduced
        if columns.phases == 1:  # else taps differ from phase to phase
            length, _ = columns.taps(0).as_terms(length, x.w_step)
        with parallel(groups, self.panels.groups, parts) as (group, g, part), self._task(length):
            begin, end = map(bind, share(group, steps, groups))
            with (
                serial(rows.phases * columns.phases) as phase,
                _runs(begin, end, run) as (low, high),
            ):
                phases = digits(phase, (rows.phases, columns.phases))
                starts = []
                if asks:
                    n, a, b = self._place((low + run) * self.count, size)
                    starts = [bind(ask.image.at(n, a, b, g)) for ask in asks]
                with serial(each) as i:
                    block = bind(part * each + i)
                    with (
                        when(block < self.blocks if self.blocks % each else True),
                        serial(high, low) as step,
                    ):
                        for ask, start in zip(asks, starts, strict=True):
                            ask.step(start, i * run + (step - low))
                        places = [
                            self._place(step * self.count + t, size) for t in range(self.count)
                        ]
                        sums = self._sums(x, weight, places, phases, (g, block))
                        for t, place in enumerate(places):
                            self._store(y, sums, t, place, phases, (g, block))

    def _place(self, tile: Expr, size: tuple[int, int, int]) -> tuple[Expr, Expr, Expr]:
        """(image, row, first column) of a tile; the last one again where there is no such."""
        last = math.prod(size) - 1
        n, a, b = digits(bind(T.min(int64(tile), int64(last))), size)
        first = T.min(int64(b * self.rows), int64(self.axes[1].count - self.rows))
        return n, a, bind(first)

    def _work(self, steps: int) -> Work:
        (rows, columns), panels = self.axes, self.panels
        terms = panels.reduced * panels.rows * panels.columns
        pixels = self.count * self.rows * rows.scale * columns.scale
        return Work(
            groups=panels.groups, steps=steps, blocks=self.blocks,
            cycles=terms / TERMS * self.cycles, step_bytes=pixels * panels.reduced * 2,
            block_bytes=terms * _BLOCK * 2,
        )  # fmt: skip

    def _run(self, work: Work) -> int:
        """Steps that a task takes through all its blocks before the next ones; all with 0."""
        return 0

    def _ahead(self, x: Image, y: Image, each: int) -> list[_Ahead]:
        """Of what a step of each of so many blocks asks for a share: of the next run's lines."""
        found = []
        of_task = self.asked[0], self.asked[1] and each == self.blocks
        for image, dtype, is_asked in zip((x, y), ("bfloat16", self.dtype), of_task, strict=True):
            line = self.machine.line(dtype)
            share = ceildiv(self.count * self.rows * image.w_step, each * line)
            if is_asked and (image is y or share <= _MOST_READ):
                found.append(_Ahead(image, share, line, image is y))
        return found

    def _operands(
        self, x: Image, places: list[tuple[Expr, Expr, Expr]], phases: list[Expr],
        where: tuple[Expr, Expr],
    ) -> tuple[list[Expr], list[Expr], tuple[Taps, Taps]]:  # fmt: skip
        """Where the first tap's pixels of each tile are, and its weights, in two panels; taps."""
        rows, columns = self.axes
        g, block = where
        panels = self.panels
        h, w = rows.taps(phases[0]), columns.taps(phases[1])
        origins = [
            bind(x.at(n, a * rows.scale + h.offset, b * columns.scale + w.offset, g))
            for n, a, b in places
        ]
        first = bind(g * panels.blocks + block * 2)
        second = first + 1
        if panels.blocks % 2:  # the last of 32 channels has one panel, which is read twice
            last = g * panels.blocks + panels.blocks - 1
            second = bind(T.min(int64(second), int64(last)))
        start = h.first * panels.r_step + w.first * panels.s_step
        return origins, [bind(b * panels.block_step + start) for b in (first, second)], (h, w)

    @contextmanager
    def _task(self, length: int) -> Iterator[None]:
        """What is written of a task, with sums of rows of so many terms."""
        yield

    def _sums(
        self, x: Image, weight: Expr, places: list[tuple[Expr, Expr, Expr]], phases: list[Expr],
        where: tuple[Expr, Expr],
    ) -> Expr:  # fmt: skip
        """A step's sums: [tile][pixel][channel]."""
        raise NotImplementedError

    def _each_row(self) -> Iterator[Expr]:
        """A tile's pixels, one after another."""
        with serial(self.rows) as j:
            yield j

    def _store(
        self, y: Image, sums: Expr, t: int, place: tuple[Expr, Expr, Expr], phases: list[Expr],
        where: tuple[Expr, Expr],
    ) -> None:  # fmt: skip
        """Writes a tile of pixels' 32 channels, or those that there are."""
        n, a, b = place
        g, block = where
        rows, columns = self.axes
        row, exists_row = rows.place(a, phases[0])
        rest = self.panels.sums % _BLOCK
        widths = [(_BLOCK, block < self.blocks - 1), (rest, block == self.blocks - 1)]
        if not rest or self.blocks == 1:
            widths = [(rest or _BLOCK, True)]
        converts = self.machine.has_bfloat16
        for width, fits in widths:
            with when(conjunction(exists_row, fits)):
                for j in self._each_row():
                    column, exists = columns.place(b + j, phases[1])
                    at = bind(y.at(n, row, column, g) + block * _BLOCK)
                    start = (t * self.rows + j) * _BLOCK
                    with when(exists):
                        matrix.put(y.buffer, self.dtype, at, sums, start, width, converts)


class _Tiles(_Core):
    """Two of them, of 16 pixels at most: 2 x 2 of sums."""

    cycles = 4 * ROWS

    def __init__(
        self, problem: ConvProblem, m: Machine, axes: list[Axis], panels: Panels,
        asked: list[bool],
    ) -> None:  # fmt: skip
        super().__init__(problem, m, axes, panels, asked, ROWS, 2)

    def _run(self, work: Work) -> int:
        result_bytes = self.count * self.rows * _BLOCK * DTYPE_BYTES[self.dtype]
        return run_length(work, result_bytes, self.machine)

    @contextmanager
    def _task(self, length: int) -> Iterator[None]:
        chunk = _chunk(length)
        tiles = matrix.TILES
        tiles.configure(
            (self.rows,) * 6 + (chunk // 2,) * 2,
            (SUMS * 4,) * 4 + (2 * chunk,) * 2 + (PAIR * 2,) * 2,
        )
        size, line = 2 * self.rows * _BLOCK, self.machine.line_bytes
        self._memory = local("sums", size, "float32", align=line)
        yield
        tiles.release()

    def _sums(
        self, x: Image, weight: Expr, places: list[tuple[Expr, Expr, Expr]], phases: list[Expr],
        where: tuple[Expr, Expr],
    ) -> Expr:  # fmt: skip
        tiles, (_, columns) = matrix.TILES, self.axes
        origins, weights, taps = self._operands(x, places, phases, where)
        length, count = taps[1].as_terms(self.panels.reduced, x.w_step)
        chunk = _chunk(length)
        for i in range(4):
            tiles.zero(i)
        with serial(taps[0].count) as r, serial(count) as s:
            here = [bind(origin + x.step(taps, r, s)) for origin in origins]
            there = [bind(at + self.panels.step(taps, r, s)) for at in weights]
            with serial(length // chunk) as c:
                for i in range(2):
                    tiles.load(4 + i, x.buffer, here[i] + c * chunk, columns.scale * x.w_step)
                    tiles.load(6 + i, weight, there[i] + c * chunk * SUMS, PAIR)
                for i in range(4):
                    tiles.product(i, 4 + i // 2, 6 + i % 2)
        for i in range(4):
            at = i // 2 * self.rows * _BLOCK + i % 2 * SUMS
            tiles.store(i, self._memory, at, _BLOCK)
        return self._memory


class _Pairs(_Core):
    """One, of as many pixels as there are registers for."""

    cycles = 2 * 14 * TERMS // 2 // 2

    def __init__(
        self, problem: ConvProblem, m: Machine, axes: list[Axis], panels: Panels,
        asked: list[bool],
    ) -> None:  # fmt: skip
        step = panels.reduced * panels.groups * 2 * axes[1].scale
        most = tile_rows(m, 2)
        if cache_sets_conflict(m, most, step):
            most = m.l1_ways // 2
        super().__init__(problem, m, axes, panels, asked, most, 1)

    def _each_row(self) -> Iterator[Expr]:
        yield from range(self.rows)  # sums are in registers, which have no numbers at run time

    def _sums(
        self, x: Image, weight: Expr, places: list[tuple[Expr, Expr, Expr]], phases: list[Expr],
        where: tuple[Expr, Expr],
    ) -> Expr:  # fmt: skip
        origins, weights, taps = self._operands(x, places, phases, where)
        length, count = taps[1].as_terms(self.panels.reduced, x.w_step)
        step = self.axes[1].scale * x.w_step
        pixels, terms = view(x.buffer, PAIR_BITS), view(weight, PAIR_BITS)
        sums = local("sums", self.rows * _BLOCK, "float32")
        for i in range(0, self.rows * _BLOCK, SUMS):
            T.buffer_store(sums, zero("float32", SUMS), [vector(i, SUMS)])
        with serial(taps[0].count) as r, serial(count) as s:
            here = bind((origins[0] + x.step(taps, r, s)) // 2)
            there = [bind((at + self.panels.step(taps, r, s)) // 2) for at in weights]
            with serial(length // 2) as j:
                pairs.outer(
                    sums, [pixels[int64(here + i * (step // 2) + j)] for i in range(self.rows)],
                    [terms[vector(at + j * SUMS, SUMS)] for at in there],
                )  # fmt: skip
        return sums
