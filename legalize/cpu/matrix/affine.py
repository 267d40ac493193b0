"""fprop and dgrad in tiles: rows are pixels that follow each other at one step.

A step's sums are 2 x 2 tiles, of two tiles of pixels and 32 channels, and stay in tiles over all
taps and channels: four products for four loads.  Pixels are read where they are, at any step.  A
tile never crosses the end of a row: it has as many pixels as divide a row best, and the last of a
row begins so early that it is whole, and computes some results a second time.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from ...quotient import share
from ..emitters.axes import Axis
from ..emitters.loops import (
    Expr,
    bind,
    ceildiv,
    digits,
    int64,
    local,
    parallel,
    serial,
    when,
)
from ..emitters.memory import NO_BORDER, Image, Memory
from ..machine import Machine
from . import tiles as matrix
from .panels import Panels, pack
from .tiles import PAIR, ROWS, SUMS, TERMS

_LEAST = 8  # channels of one of several groups
_BLOCK = 2 * SUMS  # channels of a step's sums
_MOST_PAIRS = 16  # of tiles, of a task
_MANY_TASKS = 8  # of each core, from which on their number need not be a multiple of the cores'
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
    follow = axes[1].taps(0).as_terms(1, 1)[0] if groups == 1 else 1
    filled = _filled(size[1] // groups, follow)
    matrix.TILES.permit()
    panels = Panels(groups, out[1] // groups, filled, problem.r, problem.s)
    weight = pack(problem, memory, panels)
    read = memory.operand(operand, groups, size[1] // groups, border=border, block=filled)
    written = memory.result(groups, out[1] // groups)
    if problem.layout(result)[-1] == "C":
        written = replace(written, is_copied=False)
    batch = memory.batch(read, written)
    height, width = out[2:]
    merged = False
    if problem.r == problem.s == 1 and problem.strides == (1, 1) and border == NO_BORDER:
        merged = all(x.is_dense(batch.images, height, width) for x in batch.tensors)
        if all(x.has_dense_rows(width) for x in batch.tensors):
            height, width = 1, height * width * (batch.images if merged else 1)
            axes = [Axis(False, length, length, 1, 1, 1, 0) for length in (height, width)]
    core = _Core(problem, m, axes, panels)
    with batch.each() as (_, count, (x, y)):
        core.write(x, y, weight, 1 if merged else count)


def _chunk(length: int) -> int:
    """Terms of a product: an even divisor."""
    return max(x for x in range(2, TERMS + 1, 2) if length % x == 0)


def _filled(channels: int, follow: int) -> int:
    """Channels with as many more as lead to fewer products, where `follow` taps are one sum."""
    even = ceildiv(channels, 2) * 2

    def products(each: int) -> int:
        return each * follow // _chunk(each * follow)

    more = sorted({ceildiv(channels, x) * x for x in (4, 8, 16, TERMS)}, key=products)
    return more[0] if products(more[0]) <= _GAIN * products(even) else even


class _Core:
    """Pairs of tiles of pixels, times 32 channels."""

    def __init__(self, problem: ConvProblem, m: Machine, axes: list[Axis], panels: Panels) -> None:
        self.problem = problem
        self.machine = m
        self.axes = axes
        self.panels = panels
        self.dtype = problem.dtype(problem.roles[2])
        count = axes[1].count
        self.rows = ceildiv(count, ceildiv(count, ROWS))  # of a tile: pixels
        self.blocks = ceildiv(panels.blocks, 2)

    def write(self, x: Image, y: Image, weight: Expr, images: int) -> None:
        rows, columns = self.axes
        size = (images, rows.count, ceildiv(columns.count, self.rows))
        total = size[0] * size[1] * size[2]
        pairs = ceildiv(total, 2)
        groups, parts = self._sizes(pairs)
        each = ceildiv(self.blocks, parts)
        length, _ = columns.taps(0).as_terms(self.panels.reduced, x.w_step)
        chunk = _chunk(length)
        with parallel(groups, self.panels.groups, parts) as (group, g, part):
            tiles = matrix.TILES
            tiles.configure(
                (self.rows,) * 6 + (chunk // 2,) * 2,
                (SUMS * 4,) * 4 + (2 * chunk,) * 2 + (PAIR * 2,) * 2,
            )
            sums = local("sums", 2 * ROWS * _BLOCK, "float32")
            begin, end = map(bind, share(group, pairs, groups))
            with serial(rows.phases * columns.phases) as phase, serial(each) as i:
                phases = digits(phase, (rows.phases, columns.phases))
                block = bind(part * each + i)
                with (
                    when(block < self.blocks if self.blocks % each else True),
                    serial(end, begin) as pair,
                ):
                    numbers = [bind(pair * 2), bind(T.min(int64(pair * 2 + 1), int64(total - 1)))]
                    places = [digits(number, size) for number in numbers]
                    places = [
                        (n, a, bind(T.min(int64(b * self.rows), int64(columns.count - self.rows))))
                        for n, a, b in places
                    ]
                    self._sums(x, weight, sums, places, phases, (g, block), chunk)
                    for t, place in enumerate(places):
                        self._store(y, sums, t, place, phases, (g, block))
            tiles.release()

    def _sizes(self, pairs: int) -> tuple[int, int]:
        """(groups of pairs, parts of the blocks of channels): as many tasks as have even work."""
        rows, columns = self.axes
        pair = 2 * self.rows * self.panels.reduced * 2 * rows.scale * columns.scale
        most = max(1, min(_MOST_PAIRS, self.machine.l2_bytes // 2 // pair))
        cores = self.machine.cores
        groups = ceildiv(pairs, most)
        if self.panels.groups % cores:
            groups = min(pairs, ceildiv(groups, cores) * cores)
        tasks = groups * self.panels.groups
        fair = [x for x in range(1, self.blocks + 1) if self.blocks % x == 0]
        even = (x for x in fair if tasks * x % cores == 0 or tasks * x >= _MANY_TASKS * cores)
        return groups, next(even, self.blocks)

    def _sums(
        self, x: Image, weight: Expr, sums: Expr, places: list[tuple[Expr, Expr, Expr]],
        phases: list[Expr], where: tuple[Expr, Expr], chunk: int,
    ) -> None:  # fmt: skip
        rows, columns = self.axes
        g, block = where
        panels, tiles = self.panels, matrix.TILES
        h, w = rows.taps(phases[0]), columns.taps(phases[1])
        length, w_count = w.as_terms(panels.reduced, x.w_step)
        origins = [
            bind(x.at(n, a * rows.scale + h.offset, b * columns.scale + w.offset, g))
            for n, a, b in places
        ]
        first = bind(g * panels.blocks + block * 2)
        second = (
            first + 1
            if panels.blocks % 2 == 0
            else bind(T.min(int64(first + 1), int64(g * panels.blocks + panels.blocks - 1)))
        )
        start = h.first * panels.r_step + w.first * panels.s_step
        weights = [bind(b * panels.block_step + start) for b in (first, second)]
        for i in range(4):
            tiles.zero(i)
        with serial(h.count) as r, serial(w_count) as s:
            here = [bind(origin + x.step((h, w), r, s)) for origin in origins]
            there = [bind(at + panels.step((h, w), r, s)) for at in weights]
            with serial(length // chunk) as c:
                for i in range(2):
                    tiles.load(4 + i, x.buffer, here[i] + c * chunk, columns.scale * x.w_step)
                    tiles.load(6 + i, weight, there[i] + c * chunk * SUMS, PAIR)
                for i in range(4):
                    tiles.product(i, 4 + i // 2, 6 + i % 2)
        for i in range(4):
            tiles.store(i, sums, i // 2 * ROWS * _BLOCK + i % 2 * SUMS, _BLOCK)

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
        last = block == self.blocks - 1
        with when(exists_row), serial(self.rows) as j:
            column, exists = columns.place(b + j, phases[1])
            at = bind(y.at(n, row, column, g) + block * _BLOCK)
            start = t * ROWS * _BLOCK + j * _BLOCK
            with when(exists):
                if self.blocks > 1 or not rest:
                    with when(tirx.Not(last) if rest else True):
                        self._put(y.buffer, at, sums, start, _BLOCK)
                if rest:
                    with when(last if self.blocks > 1 else True):
                        self._put(y.buffer, at, sums, start, rest)

    def _put(self, target: Expr, at: Expr, sums: Expr, start: Expr, count: int) -> None:
        matrix.put(target, self.dtype, at, sums, start, count, self.machine.rounds_to_bfloat16)
