"""fprop and dgrad: one core, since both sum weights over pixels at affine positions (`axes`).

The core keeps a tile of pixels times a block of output channels in registers and runs over taps
and input channels; positions off the image are zeros of the operand's border.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from .axes import Axis
from .emit import (
    Expr,
    bind,
    both,
    ceildiv,
    digits,
    head,
    int64,
    local,
    parallel,
    prefetch,
    serial,
    splat,
    vector,
    when,
    zero,
)
from .machine import Machine
from .memory import NO_BORDER, Image, Memory, Panels

# Bytes of a pixel that a cache's own prefetching finds in time, without being asked; and how much
# more than the level-2 caches tensors are that do not stay in a cache.  Both measured.
_LONG_PIXEL, _BEYOND = 1 << 10, 4
# Input channels of a 1 x 1 kernel from which on fewer loads matter more than fewer tiles.
_DEEP = 64
# Tiles of one row must save so much of the work: they load more.
_FEWER = 0.75


@dataclass(frozen=True)
class Tile:
    """Pixels (rows x columns) times channels (vectors x lanes) in registers."""

    rows: int
    columns: int
    vectors: int
    lanes: int

    @property
    def block(self) -> int:
        return self.vectors * self.lanes


def channel_block(m: Machine, dtype: str, channels: int, wide: bool = False) -> tuple[int, int]:
    """(vectors, lanes) of a block of output channels: least padding first, then two vectors, or as
    many as can be if it should be wide."""
    lanes = m.lanes(dtype)
    if channels < lanes:
        return 1, 1 << (channels - 1).bit_length()
    preferred = (2, 4, 3, 1) if m.registers >= 32 else (2, 3, 1)
    return min(
        sorted(preferred, reverse=True) if wide else preferred,
        key=lambda v: -(-channels // (v * lanes)) * v * lanes,
    ), lanes


def compete(m: Machine, pixels: int, step_bytes: Expr) -> bool:
    """Whether so many pixels at this step fall on too few places of a level-1 cache."""
    if not isinstance(step_bytes, int):
        return False
    places = m.l1_way_bytes // math.gcd(step_bytes, m.l1_way_bytes)
    return -(-pixels // places) > m.l1_ways - 2


def pixel_tile(m: Machine, vectors: int, rows: int, columns: int) -> tuple[int, int]:
    """(rows, columns) of pixels whose accumulators fit beside the weights and one splat."""
    most = min((m.registers - vectors - 1) // vectors, 16)
    tiles = -(-columns // most)
    wide = -(-columns // tiles)
    high = min(most // wide, rows)
    return (high if columns == wide else 1), wide


def shapes(axes: Sequence[Axis], tile: Tile, a: Expr, b: Expr) -> Iterator[tuple[int, int]]:
    """The tile's size, and its smaller ones for the ends of columns and rows, each in turn.

    What is emitted between two steps is under the condition that the tile at (a, b) has that size.
    """
    for high, at_row in _ends(axes[0].count, tile.rows, a):
        for wide, at_column in _ends(axes[1].count, tile.columns, b):
            with when(both(at_row, at_column)):
                yield high, wide


def _ends(count: int, step: int, start: Expr) -> list[tuple[int, Expr]]:
    """(size, condition) of the pieces that cut `count` into steps."""
    rest = count % step
    if not rest:
        return [(step, True)]
    if count < step:
        return [(rest, True)]
    return [(step, start + step <= count), (rest, start + step > count)]


def emit(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel: operands in, core, result out."""
    dgrad = problem.kind is ConvKind.DGRAD
    operand, _, result = problem.roles
    groups = problem.groups
    size, out = problem.canonical_shape(operand), problem.canonical_shape(result)
    reduced, channels = size[1] // groups, out[1] // groups
    axes = [
        Axis(
            dgrad, size[2 + i], out[2 + i], problem.canonical_shape("weight")[2 + i],
            problem.strides[i], problem.dilation[i], problem.padding[i],
        )
        for i in (0, 1)
    ]  # fmt: skip
    vectors, lanes = channel_block(m, memory.accum, channels)
    # Few pixels and many channels in a register tile need fewer loads, and cope with pixels that
    # compete for cache lines; many pixels suit short rows, which they divide better.
    bytes_ = 8 if memory.accum == "float64" else 4
    step = groups * reduced * axes[1].scale * bytes_
    pointwise = problem.r == problem.s == 1
    if (pointwise and reduced >= _DEEP) or compete(
        m, pixel_tile(m, vectors, 1, axes[1].count)[1], step
    ):
        vectors, lanes = channel_block(m, memory.accum, channels, wide=True)
    block = vectors * lanes
    (top, bottom), (left, right) = (axis.border() for axis in axes)
    weight, panels = memory.panels("I" if dgrad else "O", groups, channels, reduced, block)
    memory.move_weight(weight, panels, True, reverse=dgrad)
    batch = memory.batch(
        memory.operand(operand, groups, reduced, border=(top, left, bottom, right)),
        memory.result(groups, channels),
    )
    height, width = out[2:]
    plain = problem.strides == (1, 1) and problem.padding == NO_BORDER
    merged = streams = False
    if pointwise and plain:
        # 1 x 1 convolutions are matrix products: the pixels of an image are one row, and if the
        # batch is known and images follow each other, so are those of all images.
        images = batch.images if problem.is_static else problem.n
        merged = all(tensor.is_dense(images, height, width) for tensor in batch.tensors)
        if all(tensor.has_dense_rows(width) for tensor in batch.tensors):
            height, width = 1, height * width * (images if merged else 1)
            streams = reduced * bytes_ <= _LONG_PIXEL and _beyond_caches(problem, m)
        axes = [Axis(False, length, length, 1, 1, 1, 0) for length in (height, width)]
    rows, columns = pixel_tile(m, vectors, axes[0].count, axes[1].count)
    if axes[0].phases == 1 and axes[0].rows_of_taps(1) < _FEWER * axes[0].rows_of_taps(rows):
        rows = 1  # taps off the image are left out where they miss all rows of a tile
    tile = Tile(rows, columns, vectors, lanes)
    core = _Core(problem, m, memory.accum, axes, tile, streams)
    with batch.each() as (_, count, (x, y)):
        core.emit(x, y, weight, panels, 1 if merged else count)


def _beyond_caches(problem: ConvProblem, m: Machine) -> bool:
    """Whether operand and result come from memory and go there, as far as is known."""
    return bool(problem.is_static and problem.bytes > _BEYOND * m.l2_bytes * m.cores)


class _Core:
    def __init__(
        self, problem: ConvProblem, m: Machine, accum: str, axes: list[Axis], tile: Tile,
        streams: bool,
    ) -> None:  # fmt: skip
        self.problem = problem
        self.machine = m
        self.accum = accum
        self.axes = axes
        self.tile = tile
        self.line = m.line_bytes // (8 if accum == "float64" else 4)  # elements of a cache line
        self.streams = streams  # a row of pixels that are read and written in order

    def emit(self, x: Image, y: Image, weight: Expr, panels: Panels, images: Expr) -> None:
        rows, columns = self.axes
        tile = self.tile
        high, wide = ceildiv(rows.count, tile.rows), ceildiv(columns.count, tile.columns)
        sizes = (images, high, wide)
        bytes_ = 8 if self.accum == "float64" else 4
        weights = panels.groups * panels.blocks * panels.block_step * bytes_
        # All weights stay in the cache if they fit; else one block of them does, for all pixels.
        small = weights <= self.machine.l2_bytes // 2
        order = (*sizes, panels.groups, panels.blocks) if small else (
            panels.groups, panels.blocks, *sizes
        )  # fmt: skip
        with parallel(*order) as index:
            n, a, b, g, block = index if small else (*index[2:], *index[:2])
            a, b = bind(a * tile.rows), bind(b * tile.columns)
            phases_h, phases_w = rows.phases, columns.phases
            with serial(phases_h * phases_w) as phase:
                h_phase, w_phase = digits(phase, (phases_h, phases_w))
                where, phase_hw = (n, a, b, g, block), (h_phase, w_phase)
                for shape in shapes(self.axes, tile, a, b):
                    self._tile(x, y, weight, panels, where, phase_hw, shape)

    def _tile(
        self, x: Image, y: Image, weight: Expr, panels: Panels,
        where: tuple[Expr, Expr, Expr, Expr, Expr], phase: tuple[Expr, Expr],
        shape: tuple[int, int],
    ) -> None:  # fmt: skip
        n, a, b, g, block = where
        rows, columns = self.axes
        lanes, vectors, accum = self.tile.lanes, self.tile.vectors, self.accum
        pixels = [(i, j) for i in range(shape[0]) for j in range(shape[1])]
        acc = local("acc", len(pixels) * vectors * lanes, accum)

        def at(pixel: int, v: int) -> list[Expr]:
            return [vector((pixel * vectors + v) * lanes, lanes)]

        for i in range(len(pixels)):
            for v in range(vectors):
                T.buffer_store(acc, zero(accum, lanes), at(i, v))
        results = []
        line = self.line
        parts = panels.reduced // line if self.streams else 0
        for p, q in pixels:
            row, exists_row = rows.place(a + p, phase[0])
            column, exists_column = columns.place(b + q, phase[1])
            place = bind(y.at(n, row, column, g) + block * panels.block)
            results.append((place, both(exists_row, exists_column)))
            for start in range(0, 0 if parts else self.tile.block, max(line, lanes)):
                prefetch(y.buffer, place + start, write=True)
        steps = [p * rows.scale * x.h_step + q * columns.scale * x.w_step for p, q in pixels]
        h, w = rows.taps(phase[0]), columns.taps(phase[1])
        origin = bind(x.at(n, a * rows.scale + h.offset, b * columns.scale + w.offset, g))
        panel = bind(panels.at(g, block, h.first, w.first))
        reduced, w_count = panels.reduced, w.count
        dense = isinstance(x.w_step, int) and x.w_step == reduced and w.reach == w.step == 1
        if dense and isinstance(w_count, int):
            # Taps of a row follow each other in both operands, as if they were channels.
            reduced, w_count = reduced * w_count, 1
        begin, end = rows.reached(h, a, shape[0])
        with serial(end, begin) as r, serial(w_count) as s:
            image = bind(origin + r * (h.reach * x.h_step) + s * (w.reach * x.w_step))
            taps = bind(panel + r * (h.step * panels.r_step) + s * (w.step * panels.s_step))

            def products(c: Expr) -> None:
                weights = [
                    weight[vector(taps + c * panels.block + v * lanes, lanes)]
                    for v in range(vectors)
                ]
                for i, step in enumerate(steps):
                    value = splat(x.buffer[int64(image + step + c)], lanes)
                    for v in range(vectors):
                        T.buffer_store(acc, acc[at(i, v)[0]] + value * weights[v], at(i, v))

            if parts:
                with serial(parts) as part:
                    self._ask(x, y, image + part * line, results[0][0], len(pixels), part, parts)
                    with serial(line) as c:
                        products(part * line + c)
            if reduced > parts * line:
                with serial(reduced, parts * line) as c:
                    products(c)
        last = panels.lanes - (panels.blocks - 1) * panels.block
        ends = [(panels.block, block < panels.blocks - 1), (last, block == panels.blocks - 1)]
        if last == panels.block or panels.blocks == 1:
            ends = [(last, True)]
        for channels, condition in ends:
            with when(condition):
                for i, (place, exists) in enumerate(results):
                    with when(exists):
                        for start in range(0, channels, lanes):
                            count = min(lanes, channels - start)
                            value = head(acc[at(i, start // lanes)[0]], lanes, count)
                            T.buffer_store(y.buffer, value, [vector(place + start, count)])

    def _ask(
        self, x: Image, y: Image, source: Expr, target: Expr, pixels: int, part: Expr, parts: int
    ) -> None:
        """Asks for a line of each of the next pixels, and for a share of the lines to be written.

        A short pixel is over before a cache sees that it is read in order.
        """
        for i in range(pixels):
            prefetch(x.buffer, source + (pixels + i) * x.w_step)
        step = max(
            self.tile.lanes, self.machine.line_bytes // (8 if self.accum == "float64" else 4)
        )
        of_pixel = ceildiv(self.tile.block, step)
        some = ceildiv(pixels * of_pixel, parts)
        for i in range(some):
            number = part * some + i
            at = target + number // of_pixel * y.w_step + number % of_pixel * step
            prefetch(y.buffer, at, write=True)
