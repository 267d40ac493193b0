"""fprop and dgrad on CPUs with few registers: weights that wait in the level-1 cache.

A tile of 16 registers or so has few pixels, so the weights of its channels would come from the
level-2 cache as fast as it gives them.  Here a task has a group of tiles, and of the weights a
chunk that the level-1 cache holds: each chunk serves all tiles of the group before the next one
comes, and the sums wait in memory meanwhile.  The group's pixels stay in the level-2 cache for all
channels.

A tile's pixels are any that follow each other, over ends of rows and images: each has its own
place, which is found once for a group.  So no tile is smaller than others, but the last one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvProblem

from ...quotient import share
from ..emitters.axes import Axis, Taps
from ..emitters.loops import (  # fmt: skip
    Expr,
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
    store_head,
    vector,
    when,
    zero,
)
from ..emitters.memory import Image, Panels
from ..emitters.tiles import Tile
from ..machine import Machine

_MOST_TILES = 16  # of a group
_AHEAD = 1500  # cycles before lines are written that they are asked for


@dataclass(frozen=True)
class Places:
    """Of a group's pixels: where they are read and written, and the tap rows of each tile."""

    x: Expr
    y: Expr  # -1 for a pixel that does not exist
    begin: Expr
    end: Expr


class Blocked:
    """The loops over groups of tiles, blocks of channels, chunks of the sum, and tiles."""

    def __init__(
        self, problem: ConvProblem, m: Machine, accum: str, axes: list[Axis], tile: Tile,
        depth: Axis | None = None,
    ) -> None:  # fmt: skip
        self.problem = problem
        self.machine = m
        self.accum = accum
        self.axes = axes
        self.depth = depth
        self.pixels = tile.rows * tile.columns
        self.tile = tile
        self.bytes = DTYPE_BYTES[accum]
        self.line = max(tile.lanes, m.line(accum))
        self.skips = axes[0].border() != (0, 0)  # some tap rows are off the operand

    def write(self, x: Image, y: Image, weight: Expr, panels: Panels, images: Expr) -> None:
        rows, columns = self.axes
        deep = self.depth
        planes = deep.count if deep else 1
        total = images * planes * rows.count * columns.count
        tiles = ceildiv(total, self.pixels)
        groups, parts = self._sizes(tiles, panels)
        each, many = ceildiv(panels.blocks, parts), ceildiv(tiles, groups)
        if not isinstance(many, int):
            many = self._most_tiles(panels)
        with parallel(groups, panels.groups, parts) as (group, g, part):
            begin, end = share(group, tiles, groups)
            first = bind(begin)
            count = bind(end - first)
            of_each = (deep.phases if deep else 1, rows.phases, columns.phases)
            with serial(math.prod(of_each)) as phase:
                phases = digits(phase, of_each)
                h, w = rows.taps(phases[1]), columns.taps(phases[2])
                of_depth = deep.taps(phases[0]) if deep else None
                found = (images, planes, total), (first, count, many)
                places = self._places(x, y, *found, phases, (h, w), of_depth)
                with serial(each) as i:
                    block = bind(part * each + i)
                    with when(block < panels.blocks if panels.blocks % each else True):
                        self._block(
                            x,
                            y,
                            weight,
                            panels,
                            places,
                            (h, w),
                            of_depth,
                            (g, block),
                            (count, many),
                        )

    def _most_tiles(self, panels: Panels) -> int:
        """Tiles of a group, at most: their operand takes half of the level-2 cache."""
        pixel = panels.reduced * self.bytes * self.axes[0].scale * self.axes[1].scale
        return max(4, min(_MOST_TILES, self.machine.l2_bytes // 2 // (self.pixels * pixel)))

    def _sizes(self, tiles: Expr, panels: Panels) -> tuple[Expr, int]:
        """(groups of tiles, parts of the blocks of channels): as many tasks as have even work."""
        groups, m = ceildiv(tiles, self._most_tiles(panels)), self.machine
        if not isinstance(groups, int):
            return groups, 1
        if panels.groups % m.cores:
            groups = min(tiles, ceildiv(groups, m.cores) * m.cores)
        fair = [x for x in range(1, panels.blocks + 1) if panels.blocks % x == 0]
        even = (x for x in fair if m.is_even(groups * panels.groups * x))
        parts = next(even, panels.blocks)
        while m.shares and not m.is_even(groups * panels.groups * parts) and 2 * groups <= tiles:
            groups *= 2
        return groups, parts

    def _places(
        self, x: Image, y: Image, size: tuple[Expr, int, Expr], tiles: tuple[Expr, Expr, int],
        phases: list[Expr], taps: tuple[Taps, Taps], of_depth: Taps | None,
    ) -> Places:  # fmt: skip
        rows, columns = self.axes
        images, planes, total = size
        deep = self.depth
        first, count, many = tiles
        h, w = taps
        found = Places(
            local("x_places", many * self.pixels, "int64"),
            local("y_places", many * self.pixels, "int64"),
            local("first_taps", many, "int64"),
            local("last_taps", many, "int64"),
        )

        def position(number: Expr) -> list[Expr]:
            return digits(number, (images, planes, rows.count, columns.count))

        with serial(count * self.pixels) as i:
            number = bind(first * self.pixels + i)
            n, z, a, b = position(bind(T.min(int64(number), int64(total - 1))))
            plane = z * deep.scale + of_depth.offset if deep and of_depth else 0
            at = x.at(n, a * rows.scale + h.offset, b * columns.scale + w.offset, 0, plane)
            T.buffer_store(found.x, int64(at), [int64(i)])
            row, exists_row = rows.place(a, phases[1])
            column, exists_column = columns.place(b, phases[2])
            exists = conjunction(conjunction(exists_row, exists_column), number < total)
            to, exists_plane = deep.place(z, phases[0]) if deep else (0, True)
            exists = conjunction(exists, exists_plane)
            there = T.if_then_else(exists, int64(y.at(n, row, column, 0, to)), int64(-1))
            T.buffer_store(found.y, there, [int64(i)])
        if self.skips:
            with serial(count) as t:
                number = bind((first + t) * self.pixels)
                n, z, a, _ = position(number)
                number = bind(T.min(int64(number + self.pixels - 1), int64(total - 1)))
                last_n, last_z, last_a, _ = position(number)
                begin, end = rows.reached(h, a, last_a - a + 1)
                same: Expr = last_n == n if not isinstance(n, int) else True
                same = conjunction(same, last_z == z if not isinstance(z, int) else True)
                if same is not True:
                    begin = T.if_then_else(same, int64(begin), int64(0))
                    end = T.if_then_else(same, int64(end), int64(h.count))
                T.buffer_store(found.begin, int64(begin), [int64(t)])
                T.buffer_store(found.end, int64(end), [int64(t)])
        return found

    def _block(
        self, x: Image, y: Image, weight: Expr, panels: Panels, places: Places,
        taps: tuple[Taps, Taps], of_depth: Taps | None, where: tuple[Expr, Expr],
        tiles: tuple[Expr, int],
    ) -> None:  # fmt: skip
        """The sums of one block of channels over a group's pixels."""
        h, w = taps
        count, many = tiles
        length, columns = w.as_terms(panels.reduced, x.w_step)
        chunk = self._chunk(length)
        g, block = where
        deep = of_depth or Taps(1, 0, 0, 0, 0)
        panel = bind(panels.at(g, block, h.first, w.first) + deep.first * panels.t_step)

        def at(t: Expr, r: Expr, s: Expr) -> tuple[Expr, Expr]:
            plane, tap = t * (deep.reach * x.d_step), t * (deep.step * panels.t_step)
            source = bind(shift + x.step(taps, r, s) + plane)
            return source, bind(panel + panels.step(taps, r, s) + tap)

        shift = bind(g * x.g_step)
        target = bind(g * y.g_step + block * panels.block)
        writer = _Writer(self, y, panels, places, target, block)
        terms = math.prod(self.problem.taps) * panels.reduced
        if terms <= self._most_terms():
            ahead = min(many, ceildiv(_AHEAD * 2, terms * self.tile.vectors * self.pixels))
            with serial(T.min(int64(count), int64(ahead))) as t:
                writer.ask(t)
            with serial(count) as t:
                writer.ask(bind(T.min(int64(t + ahead), int64(count - 1))))
                acc = self._registers()
                self._clear(acc)
                last, first = h.count, 0
                if self.skips:
                    first, last = places.begin[int64(t)], places.end[int64(t)]
                with serial(deep.count) as d, serial(last, first) as r, serial(columns) as s:
                    self._products(acc, x, weight, places, t, at(d, r, s), (0, length))
                writer.write(t, acc, 0)
            return
        sums = local("sums", many * self.tile.size, self.accum)
        lanes = self.tile.lanes
        with serial(count * (self.tile.size // lanes)) as i:
            T.buffer_store(sums, zero(self.accum, lanes), [vector(i * lanes, lanes)])
        chunks = ceildiv(length, chunk)
        grid = serial(deep.count), serial(h.count), serial(columns), serial(chunks)
        with grid[0] as d, grid[1] as r, grid[2] as s, grid[3] as k:
            begin = bind(k * chunk)
            end: Expr = chunk if chunks == 1 else bind(begin + chunk)
            if length % chunk:
                end = bind(T.min(int64(begin + chunk), int64(length)))
            place = at(d, r, s)
            with serial(count) as t:
                reached: Expr = True
                if self.skips:
                    reached = conjunction(r >= places.begin[int64(t)], r < places.end[int64(t)])
                with when(reached):
                    acc = self._registers()
                    start = bind(t * self.tile.size)
                    for i in range(0, self.tile.size, lanes):
                        there = vector(start + i, lanes)
                        T.buffer_store(acc, sums[there], [vector(i, lanes)])
                    self._products(acc, x, weight, places, t, place, (begin, end))
                    for i in range(0, self.tile.size, lanes):
                        there = vector(start + i, lanes)
                        T.buffer_store(sums, acc[vector(i, lanes)], [there])
                    with when(tirx.all(d == 0, r == 0, s == 0, k == 0)):
                        writer.ask(t)
        with serial(count) as t:
            writer.write(t, sums, bind(t * self.tile.size))

    def _most_terms(self) -> int:
        """Terms of a sum whose weights take half of the level-1 cache."""
        return max(16, self.machine.l1_bytes // 2 // (self.tile.block * self.bytes))

    def _chunk(self, length: int) -> int:
        """Terms that are added at a time."""
        return ceildiv(length, ceildiv(length, self._most_terms()))

    def _registers(self) -> Expr:
        return local("acc", self.tile.size, self.accum)

    def _clear(self, acc: Expr) -> None:
        lanes = self.tile.lanes
        for i in range(self.tile.size // lanes):
            T.buffer_store(acc, zero(self.accum, lanes), [vector(i * lanes, lanes)])

    def _products(
        self, acc: Expr, x: Image, weight: Expr, places: Places, t: Expr,
        where: tuple[Expr, Expr], terms: tuple[Expr, Expr],
    ) -> None:  # fmt: skip
        """Adds some terms of the sums of tile `t`."""
        lanes, vectors = self.tile.lanes, self.tile.vectors
        source, panel = where
        pixels = [
            bind(places.x[int64(t * self.pixels + i)] + source) for i in range(self.pixels)
        ]  # fmt: skip
        with serial(terms[1], terms[0]) as c:
            weights = [
                weight[vector(panel + c * self.tile.block + v * lanes, lanes)]
                for v in range(vectors)
            ]
            outer(acc, lanes, [x.buffer[int64(pixel + c)] for pixel in pixels], weights)


class _Writer:
    """Writes the results of a block of channels."""

    def __init__(
        self, core: Blocked, y: Image, panels: Panels, places: Places, target: Expr, block: Expr
    ) -> None:
        self.core = core
        self.y = y
        self.places = places
        self.target = target
        self.widths = panels.widths(block)

    def ask(self, t: Expr) -> None:
        """Asks for the lines that tile `t` is to be written to."""
        for i in range(self.core.pixels):
            place = bind(self.places.y[int64(t * self.core.pixels + i)] + self.target)
            for start in range(0, self.core.tile.block, self.core.line):
                prefetch(self.y.buffer, place + start, write=True)

    def write(self, t: Expr, sums: Expr, start: Expr) -> None:
        """Writes tile `t`, whose sums are in an array from `start` on."""
        tile = self.core.tile
        for channels, condition in self.widths:
            with when(condition):
                for i in range(self.core.pixels):
                    place = bind(self.places.y[int64(t * self.core.pixels + i)])
                    with when(place >= 0):
                        there, at = place + self.target, start + i * tile.block
                        store_head(self.y.buffer, there, sums, at, tile.lanes, channels)
