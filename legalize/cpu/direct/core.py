"""The loops of fprop and dgrad over tiles of pixels and blocks of channels."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvProblem

from ..emitters.axes import Axis
from ..emitters.lines import Lines
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
from ..emitters.memory import Image, Memory, Panels
from ..emitters.tiles import Tile, shapes
from ..machine import Machine
from .own_weights import FRESH, OwnWeights, own_weights
from .stage import Stage


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


@dataclass(frozen=True)
class _Task:
    """A task of a grid, by its indices."""

    index: Sequence[Expr] = ()
    sizes: Sequence[Expr] = ()

    @property
    def number(self) -> Expr:
        number: Expr = 0
        for i, size in zip(self.index, self.sizes, strict=True):
            number = number * size + i
        return number


class _Ask:
    """A task's share of the lines that are asked for, some at each of its steps."""

    def __init__(self, lines: Lines, task: _Task, steps: int) -> None:
        of_task = ceildiv(lines.count, math.prod(task.sizes))
        self._lines, self._some = lines, ceildiv(of_task, steps)
        self._next = local("asked", 1, "int64")
        T.buffer_store(self._next, int64(task.number * of_task), [int64(0)])

    def step(self) -> None:
        at = bind(self._next[int64(0)])
        for i in range(self._some):
            self._lines.ask(at + i)
        T.buffer_store(self._next, at + self._some, [int64(0)])


def stay_near(m: Machine, panels: Panels, accum: str) -> bool:
    """Whether all weights stay in a level-2 cache, so that all blocks of them pass over a tile."""
    return panels.size * DTYPE_BYTES[accum] <= m.l2_bytes // 2


class Core:
    """Tiles one by one, each with its sums in registers from beginning to end."""

    def __init__(
        self, problem: ConvProblem, m: Machine, accum: str, axes: list[Axis], tile: Tile,
        streams: bool, depth: Axis | None = None, stage: Stage | None = None,
        has_edges: bool = False,
    ) -> None:  # fmt: skip
        self.problem = problem
        self.machine = m
        self.accum = accum
        self.axes = axes
        self.depth = depth
        self.stage = stage  # between its sums and a result with channels outside
        self.tile = tile
        self.line = m.line(accum)
        self.has_edges = has_edges  # columns of taps are off an operand that has no border
        self.streams = streams  # a row of pixels that are read and written in order
        self.own: OwnWeights | None = None

    @property
    def _tiles(self) -> tuple[int, int]:
        """Of a plane, down and across."""
        (rows, columns), tile = self.axes, self.tile
        return ceildiv(rows.count, tile.rows), ceildiv(columns.count, tile.columns)

    @property
    def _of_plane(self) -> tuple[int, ...]:
        """Tiles, or bands of them."""
        return (self.stage.count,) if self.stage else self._tiles

    def copies_weights(self, memory: Memory, panels: Panels, reverse: bool, images: Expr) -> bool:
        """Whether many cores copy the weights in what `write` writes for so many images, all of
        them, each the blocks that it reads."""
        m, problem = self.machine, self.problem
        plain = panels.groups == 1 and not self.depth and problem.is_static
        if m.shares and not m.has_few_registers and plain:
            tiles, chunks = math.prod((images, *self._of_plane)), self._chunks(panels)
            self.own = own_weights(memory, m, panels, reverse, tiles, chunks)
        return self.own is not None

    def write(
        self, x: Image, y: Image, weight: Expr, panels: Panels, images: Expr,
        planes: tuple[Expr, int] | None = None, lines: Sequence[Lines] = (),
    ) -> None:  # fmt: skip
        """The loops; of a volume over some `planes` of each phase, (the first, how many).  Between
        products they ask for `lines`."""
        first, deep = planes or (0, self.depth.count if self.depth else 1)
        if self.stage:
            self._write_bands(x, y, weight, panels, (images, deep), first, lines, self.stage)
            return
        (rows, columns), tile = self.axes, self.tile
        sizes, weights = (images, deep, *self._of_plane), (weight, panels)
        with self._tasks(sizes, weights) as (task, (n, z, a, b), (g, block), weights):
            z, a, b = bind(first + z), bind(a * tile.rows), bind(b * tile.columns)
            asks = [_Ask(each, task, self._steps(panels)) for each in lines]
            phases = (self.depth.phases if self.depth else 1, rows.phases, columns.phases)
            with serial(math.prod(phases)) as phase:
                where, of_phase = (n, z, a, b, g, block), digits(phase, phases)
                target = y, bind(block * panels.block)
                for shape, at_edge in self._shapes(a, b):
                    self._tile(x, target, *weights, where, of_phase, shape, at_edge, asks)

    def _write_bands(
        self, x: Image, y: Image, weight: Expr, panels: Panels, sizes: tuple[Expr, int],
        first: Expr, lines: Sequence[Lines], stage: Stage,
    ) -> None:  # fmt: skip
        """The loops where results wait in bands of rows."""
        (rows, columns), tile, depth = self.axes, self.tile, self.depth
        high, wide = self._tiles
        deep_phases = depth.phases if depth else 1
        steps = stage.tiles * wide * self._steps(panels)
        sizes, weights = (*sizes, *self._of_plane), (weight, panels)
        with self._tasks(sizes, weights) as (task, (n, z, band), (g, block), weights):
            z, channel = bind(first + z), g * panels.lanes + block * panels.block
            asks = [_Ask(each, task, steps) for each in lines]
            with serial(deep_phases) as deep:
                plane, exists = depth.place(z, deep) if depth else (0, True)
                with when(exists):
                    room, place = stage.room(band), stage.place(y, n, plane, band, channel)
                    all_asks = (
                        *asks,
                        _Ask(stage.lines(place), _Task(), max(1, steps // deep_phases)),
                    )
                    with serial(stage.tiles) as i, serial(wide) as j:
                        number = bind(band * stage.tiles + i)
                        with when(number < high if high % stage.tiles else True):
                            a, b = bind(number * tile.rows), bind(j * tile.columns)
                            with serial(rows.phases * columns.phases) as phase:
                                of_phase = [deep, *digits(phase, (rows.phases, columns.phases))]
                                for shape, at_edge in self._shapes(a, b):
                                    self._tile(
                                        x, (room, 0), *weights, (n, z, a, b, g, block), of_phase,
                                        shape, at_edge, all_asks, whole=True,
                                    )  # fmt: skip
                    stage.write(room, place, band, panels.widths(block))

    def _shapes(self, a: Expr, b: Expr) -> Iterator[tuple[tuple[int, int], bool]]:
        """`shapes` of the tile at (a, b), and whether some of its pixels lack a column of taps."""
        columns, step = self.axes[1], self.tile.columns
        left, right = columns.edges if self.has_edges else (0, 0)
        for shape in shapes(self.axes, self.tile, a, b):
            wide = shape[1]
            inner = {
                left <= start <= columns.count - right - wide
                for start in range(0, columns.count, step)
                if min(step, columns.count - start) == wide
            }
            for is_inner in sorted(inner):
                there: Expr = True
                if len(inner) > 1:
                    there = tirx.all(b >= left, b <= columns.count - right - wide)
                    there = there if is_inner else tirx.Not(there)
                with when(there):
                    yield shape, not is_inner

    @contextlib.contextmanager
    def _tasks(
        self, sizes: tuple[Expr, ...], weights: tuple[Expr, Panels]
    ) -> Iterator[tuple[_Task, list[Expr], list[Expr], tuple[Expr, Panels]]]:
        """A parallel loop over a grid and blocks of channels: a task, its place in the grid,
        (group, block), the weights."""
        panels = weights[1]
        if self.own:
            with self.own.tasks() as (block, tile, own):
                task = _Task((block, tile), (panels.blocks, math.prod(sizes)))
                yield task, digits(tile, sizes), [0, block], own
            return
        chunks = self._chunks(panels)
        each = panels.blocks // chunks
        if panels.groups > 1 and chunks == 1:
            order = (*sizes, panels.groups, each)
            with parallel(*order) as index:
                *grid, g, block = index
                yield _Task(index, order), grid, [g, block], weights
            return
        order = (panels.groups, chunks, *sizes, each)
        with parallel(*order) as index:
            g, chunk, *grid, i = index
            yield _Task(index, order), grid, [g, bind(chunk * each + i)], weights

    def _chunks(self, panels: Panels) -> int:
        """Parts of the blocks of channels, of which each is over before the next begins: one, if
        all weights stay in a core's cache, else each block, for all pixels.

        Many cores each read their part of the chunks, of the weights then, and of the pixels: as
        few bytes as can be.
        """
        m, problem, bytes_ = self.machine, self.problem, DTYPE_BYTES[self.accum]
        if not m.shares or panels.groups > 1 or not problem.is_static:
            return 1 if stay_near(m, panels, self.accum) else panels.blocks
        weights = panels.size * bytes_ * (FRESH if panels.are_copied else 1)
        pixels = math.prod(problem.shape(problem.roles[0])) * bytes_
        fair = [x for x in range(1, panels.blocks + 1) if panels.blocks % x == 0]
        near = [x for x in fair if panels.size * bytes_ // x <= m.l2_bytes // 2] or fair[-1:]
        return min(near, key=lambda x: weights / x + pixels * min(x, m.cores) / m.cores)

    def _steps(self, panels: Panels) -> int:
        """At which a tile asks for lines, those of all phases together."""
        return max(1, math.prod(self.problem.taps) * panels.reduced // self.line)

    def _tile(
        self, x: Image, target: tuple[Image, Expr], weight: Expr, panels: Panels,
        where: tuple[Expr, ...], phase: list[Expr],
        shape: tuple[int, int], at_edge: bool, asks: Sequence[_Ask], whole: bool = False,
    ) -> None:  # fmt: skip
        """The sums of a tile, to the `target`, an image and the channel; where it has room for a
        `whole` block, those that do not exist too.

        `at_edge`: some pixels lack taps, whose products are of other pixels, and are dropped."""
        y, channel = target
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
            place = bind(y.at(n, row, column, g, deep.place) + channel)
            exists = conjunction(exists_row, exists_column)
            results.append((place, conjunction(exists, deep.exists)))
            for start in range(0, 0 if parts or whole else self.tile.block, max(line, lanes)):
                prefetch(y.buffer, place + start, write=True)
        steps = [p * rows.scale * x.h_step + q * columns.scale * x.w_step for p, q in pixels]
        h, w = rows.taps(phase[1]), columns.taps(phase[2])
        first = a * rows.scale + h.offset, b * columns.scale + w.offset
        origin = bind(x.at(n, *first, g))
        panel = bind(panels.at(g, block, h.first, w.first) + deep.tap * panels.t_step)
        reduced, w_count = (
            (panels.reduced, w.count) if at_edge else w.as_terms(panels.reduced, x.w_step)
        )
        begin, end = rows.reached(h, a, shape[0])
        left, right = columns.edges
        with contextlib.ExitStack() as loops:
            t = loops.enter_context(deep.taps())
            plane = origin + x.plane(deep.first + t * deep.reach)
            plane = opaque(plane) if self.depth else bind(plane)
            r, s = (loops.enter_context(one) for one in (serial(end, begin), serial(w_count)))
            image = bind(plane + x.step((h, w), r, s))
            taps = bind(panel + panels.step((h, w), r, s) + t * (deep.step * panels.t_step))

            tap_steps, kept = list(steps), []
            for i, (_, q) in enumerate(pixels):
                if at_edge and not left <= q < shape[1] - right:
                    met, moved = columns.met(w, b + q, s)
                    tap_steps[i] = bind(steps[i] + moved * x.w_step)
                    for start in range(i * self.tile.block, (i + 1) * self.tile.block, lanes):
                        at = vector(start, lanes)
                        kept.append((at, met, bind(acc[at])))

            def products(c: Expr) -> None:
                weights = [
                    weight[vector(taps + c * panels.c_step + v * lanes, lanes)]
                    for v in range(vectors)
                ]
                values = [x.buffer[int64(image + step + c)] for step in tap_steps]
                outer(acc, lanes, values, weights)

            if parts:
                with serial(parts) as part:
                    self._ask(x, y, image + part * line, results[0][0], len(pixels), part, parts)
                    with serial(line) as c:
                        products(part * line + c)
            if asks:
                parts = reduced // line
                with serial(parts) as part:
                    for ask in asks:
                        ask.step()
                    with serial(line) as c:
                        products(part * line + c)
            if reduced > parts * line:
                with serial(reduced, parts * line) as c:
                    products(c)
            for at, met, value in kept:
                T.buffer_store(acc, tirx.Select(met, acc[at], value), [at])
        for channels, condition in [(self.tile.block, True)] if whole else panels.widths(block):
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
