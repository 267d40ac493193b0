"""The loops of fprop and dgrad over tiles of pixels and blocks of channels."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvProblem

from ..emitters.axes import Axis
from ..emitters.loops import (
    Expr,
    bind,
    ceildiv,
    conjunction,
    digits,
    int64,
    local,
    opaque,
    outer,
    parallel,
    prefetch,
    serial,
    store_head,
    vector,
    when,
    zero,
)
from ..emitters.memory import Image, Panels
from ..emitters.tiles import Tile, shapes
from ..machine import Machine


class Deep:
    """Of a volume: the plane of a result, and the taps in depth that are on the operand there."""

    def __init__(self, depth: Axis | None, z: Expr, phase: Expr) -> None:
        self.place: Expr = 0
        self.exists: Expr = True
        self.first: Expr = 0
        self.tap: Expr = 0
        self.reach = self.step = 0
        self._range: tuple[Expr, Expr] | None = None
        if depth is None:
            return
        self.place, self.exists = depth.place(z, phase)
        taps = depth.taps(phase)
        self.first, self.tap = bind(z * depth.scale + taps.offset), taps.first
        self.reach, self.step = taps.reach, taps.step
        self._range = depth.reached(taps, z)

    @contextlib.contextmanager
    def taps(self) -> Iterator[Expr]:
        """A loop over them; for an image there is one, 0."""
        if self._range is None:
            yield 0
            return
        begin, end = self._range
        with serial(end, begin) as t:
            yield t


class Core:
    """Tiles one by one, each with its sums in registers from beginning to end."""

    def __init__(
        self, problem: ConvProblem, m: Machine, accum: str, axes: list[Axis], tile: Tile,
        streams: bool, depth: Axis | None = None,
    ) -> None:  # fmt: skip
        self.problem = problem
        self.machine = m
        self.accum = accum
        self.axes = axes
        self.depth = depth
        self.tile = tile
        self.line = m.line(accum)
        self.streams = streams  # a row of pixels that are read and written in order

    def write(
        self, x: Image, y: Image, weight: Expr, panels: Panels, images: Expr,
        planes: tuple[Expr, int] | None = None,
    ) -> None:  # fmt: skip
        """The loops; of a volume over some `planes` of each phase, (the first, how many)."""
        rows, columns = self.axes
        tile = self.tile
        high, wide = ceildiv(rows.count, tile.rows), ceildiv(columns.count, tile.columns)
        first, deep = planes or (0, self.depth.count if self.depth else 1)
        sizes = (images, deep, high, wide)
        weights = panels.size * DTYPE_BYTES[self.accum]
        # All weights stay in the cache if they fit; else one block of them does, for all pixels.
        small = weights <= self.machine.l2_bytes // 2
        order = (*sizes, panels.groups, panels.blocks) if small else (
            panels.groups, panels.blocks, *sizes
        )  # fmt: skip
        with parallel(*order) as index:
            n, z, a, b, g, block = index if small else (*index[2:], *index[:2])
            z, a, b = bind(first + z), bind(a * tile.rows), bind(b * tile.columns)
            phases = (self.depth.phases if self.depth else 1, rows.phases, columns.phases)
            with serial(math.prod(phases)) as phase:
                where, of_phase = (n, z, a, b, g, block), digits(phase, phases)
                for shape in shapes(self.axes, tile, a, b):
                    self._tile(x, y, weight, panels, where, of_phase, shape)

    def _tile(
        self, x: Image, y: Image, weight: Expr, panels: Panels,
        where: tuple[Expr, ...], phase: list[Expr],
        shape: tuple[int, int],
    ) -> None:  # fmt: skip
        n, z, a, b, g, block = where
        rows, columns = self.axes
        lanes, vectors, accum = self.tile.lanes, self.tile.vectors, self.accum
        pixels = [(i, j) for i in range(shape[0]) for j in range(shape[1])]
        acc = local("acc", len(pixels) * vectors * lanes, accum)
        for i in range(len(pixels) * vectors):
            T.buffer_store(acc, zero(accum, lanes), [vector(i * lanes, lanes)])
        results = []
        line = self.line
        deep = Deep(self.depth, z, phase[0])
        parts = panels.reduced // line if self.streams else 0
        for p, q in pixels:
            row, exists_row = rows.place(a + p, phase[1])
            column, exists_column = columns.place(b + q, phase[2])
            place = bind(y.at(n, row, column, g, deep.place) + block * panels.block)
            exists = conjunction(exists_row, exists_column)
            results.append((place, conjunction(exists, deep.exists)))
            for start in range(0, 0 if parts else self.tile.block, max(line, lanes)):
                prefetch(y.buffer, place + start, write=True)
        steps = [p * rows.scale * x.h_step + q * columns.scale * x.w_step for p, q in pixels]
        h, w = rows.taps(phase[1]), columns.taps(phase[2])
        first = a * rows.scale + h.offset, b * columns.scale + w.offset
        origin = bind(x.at(n, *first, g))
        panel = bind(panels.at(g, block, h.first, w.first) + deep.tap * panels.t_step)
        reduced, w_count = w.as_terms(panels.reduced, x.w_step)
        begin, end = rows.reached(h, a, shape[0])
        with contextlib.ExitStack() as loops:
            t = loops.enter_context(deep.taps())
            plane = origin + x.plane(deep.first + t * deep.reach)
            plane = opaque(plane) if self.depth else bind(plane)
            r, s = (loops.enter_context(one) for one in (serial(end, begin), serial(w_count)))
            image = bind(plane + x.step((h, w), r, s))
            taps = bind(panel + panels.step((h, w), r, s) + t * (deep.step * panels.t_step))

            def products(c: Expr) -> None:
                weights = [
                    weight[vector(taps + c * panels.block + v * lanes, lanes)]
                    for v in range(vectors)
                ]
                values = [x.buffer[int64(image + step + c)] for step in steps]
                outer(acc, lanes, values, weights)

            if parts:
                with serial(parts) as part:
                    self._ask(x, y, image + part * line, results[0][0], len(pixels), part, parts)
                    with serial(line) as c:
                        products(part * line + c)
            if reduced > parts * line:
                with serial(reduced, parts * line) as c:
                    products(c)
        for channels, condition in panels.widths(block):
            with when(condition):
                for i, (place, exists) in enumerate(results):
                    with when(exists):
                        store_head(y.buffer, place, acc, i * self.tile.block, lanes, channels)

    def _ask(
        self, x: Image, y: Image, source: Expr, target: Expr, pixels: int, part: Expr, parts: int
    ) -> None:
        """Asks for a line of each of the next pixels, and for a share of the lines to be written.

        A short pixel is over before a cache sees that it is read in order.
        """
        for i in range(pixels):
            prefetch(x.buffer, source + (pixels + i) * x.w_step)
        step = max(self.tile.lanes, self.line)
        of_pixel = ceildiv(self.tile.block, step)
        some = ceildiv(pixels * of_pixel, parts)
        for i in range(some):
            number = part * some + i
            at = target + number // of_pixel * y.w_step + number % of_pixel * step
            prefetch(y.buffer, at, write=True)
