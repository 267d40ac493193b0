"""wgrad of bfloat16: rows are filters, columns are channels, and pixels are summed over.

A task packs a unit of pixels first, in pairs: of two lines of the gradient the pixels of a column
are a pair, whatever the length of a line.  The data of a tap are [block of 16 channels][pair]
[channel][pixel of the pair], as a product's second operand is, and so is the gradient, whose pairs
are transposed for AMX: there a row of the first operand has pairs of one filter.  Sums are loaded
and stored once per tap and unit.

Where channels are few, a row of taps is one tap of more channels, of a copy with a border.

What is off the image are zeros of the data, which meet the gradient; where the gradient has no
pixel both are zeros: zero times infinity is not zero.

A task is a part of the pixels, a group, a chunk of filters and a chunk of channels (`work_split`).
The parts' sums are added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvProblem

from ...quotient import share
from ..emitters.copies import transposed
from ..emitters.loops import (
    Expr,
    Scratch,
    bind,
    cast,
    ceildiv,
    conjunction,
    head,
    int64,
    local,
    parallel,
    serial,
    vector,
    view,
    when,
    zero,
)
from ..emitters.memory import NO_BORDER, Border, Image, Memory
from ..emitters.partial_sums import parts_of
from ..machine import Machine
from ..wgrad.pixels import at_least, reach
from ..wgrad.work_split import Work, best_split
from . import pairs
from . import tiles as matrix
from .affine import used
from .panels import BITS, INTERLEAVED, PAIR_BITS
from .tiles import COUNT, PAIR, ROWS, SUMS

_BLOCK = 2 * SUMS  # filters or channels of a step's sums
_FILTERS = 8  # with sums in registers at a time
_TILE = ROWS * PAIR  # elements of a tile of operands
_SUMS = ROWS * SUMS  # of one of sums


@dataclass(frozen=True)
class _Lines:
    """The gradient's pixels as lines of `columns`, of which a unit has some pairs."""

    count: int
    columns: int
    total: int  # of pixels: the last line may have fewer
    each: int  # pairs of lines of a unit

    @property
    def units(self) -> int:
        return ceildiv(self.count, 2 * self.each)

    @property
    def chunks(self) -> int:
        """Products that a unit's pairs are."""
        return ceildiv(self.each * self.columns, ROWS)

    @property
    def are_whole(self) -> bool:
        return self.total == self.count * self.columns


def _lines(count: int, columns: int, total: int, target: int) -> _Lines:
    """Units of about `target` pixels, of the fewest products."""
    most = max(1, min(target // (2 * columns), ceildiv(count, 2)))
    options = [_Lines(count, columns, total, each) for each in range(max(1, most // 2), most + 1)]
    return min(options, key=lambda x: x.units * (x.chunks + 1))


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel: operands in, core, sum of the parts, result out."""
    groups = problem.groups
    border = _border(problem, memory)
    batch = memory.batch(
        memory.operand("grad", groups, problem.k // groups),
        memory.operand("data", groups, problem.c // groups, border=border or NO_BORDER),
    )
    core = _Core(problem, m, batch.images, batch.tensors, border is not None)
    sums = memory.scratch.new("sums", core.size, "float32")
    with (
        used(m),
        parts_of(sums, memory, core.size, core.split.splits, SUMS) as parts,
        batch.each() as (number, _, (y, x)),
    ):
        core.write(parts, y, x, number == 0)
    core.finish(sums, memory)


def _border(problem: ConvProblem, memory: Memory) -> Border | None:
    """Of data of few channels, where a row of taps is as if it were one tap of more channels, with
    no tap off the image; None where it is not, in the data's memory or the result's."""
    step, channels = memory.strides("weight"), problem.c * problem.s
    if problem.groups > 1 or problem.s == 1 or channels > _BLOCK or problem.dilation[1] > 1:
        return None
    if step["W"] != problem.c * step["I"]:
        return None
    last = (problem.q - 1) * problem.strides[1] + problem.s - 1 - problem.padding[1]
    return 0, problem.padding[1], 0, max(0, last - problem.w + 1)


class _Core:
    def __init__(
        self, problem: ConvProblem, m: Machine, images: int, tensors: list[Image], folds: bool
    ) -> None:
        self.problem = problem
        self.folds = folds  # a row of taps is one tap
        self.columns = 1 if folds else problem.s  # of taps
        self.has_tiles = m.has_tiles
        self.filters = problem.k // problem.groups
        self.channels = problem.c // problem.groups * (problem.s if folds else 1)
        self.blocks, self.tiles = ceildiv(self.filters, _BLOCK), ceildiv(self.channels, _BLOCK)
        p, q = problem.pixels
        pixels = images * p * q
        # A block of the gradient takes two thirds of a level-1 cache.
        target = m.l1_bytes * 2 // 3 // (2 * _BLOCK)
        is_product = problem.r == problem.s == 1 and problem.strides == (1, 1)
        self.is_long = (
            is_product
            and not any(problem.padding)
            and all(x.is_dense(images, p, q) for x in tensors)
        )
        if self.is_long:
            self.lines = _lines(ceildiv(pixels, ROWS), ROWS, pixels, target)
        else:
            self.lines = _lines(images * p, q, pixels, target)
        self.taps = problem.r * self.columns
        self.step = self.lines.chunks * _TILE  # of a panel of 16 filters or channels
        self.tap_step = self.blocks * self.tiles * 4 * _SUMS
        self.size = problem.groups * self.taps * self.tap_step
        bytes_ = 2 * 2 * self.step
        self.work = Work(
            groups=problem.groups, taps=self.taps, units=self.lines.units, blocks=self.blocks,
            tiles=self.tiles, block_bytes=bytes_, tile_bytes=bytes_,
            tile_cycles=self.lines.chunks * 4 * ROWS, size=self.size, element_bytes=4,
        )  # fmt: skip
        self.split = best_split(self.work, m)

    def write(self, parts: Expr, y: Image, x: Image, is_first: Expr) -> None:
        """Adds the sums over some images, the first of which find no sums yet."""
        split, problem, lines = self.split, self.problem, self.lines
        with parallel(split.splits, problem.groups, *split.chunks(self.work)) as (i, g, kc, cc):
            if self.has_tiles:
                matrix.TILES.configure((ROWS,) * COUNT, (4 * SUMS,) * COUNT)
            scratch = Scratch()
            grad = scratch.new("grad_panels", split.k_blocks * 2 * self.step, "bfloat16")
            data = scratch.new("data_panels", split.c_tiles * 2 * self.step, "bfloat16")
            blocks = _chunk(kc, split.k_blocks, self.blocks)
            channels = _chunk(cc, split.c_tiles, self.tiles)
            packing = [
                _Packing(self, y, grad, blocks, self.filters, self.blocks),
                _Packing(self, x, data, channels, self.channels, self.tiles),
            ]
            begin, end = map(bind, share(i, lines.units, split.splits))
            with serial(end, begin) as unit:
                packing[0].pack(g, unit, None)
                if self.has_tiles:
                    packing[0].transpose()
                is_new = conjunction(is_first, unit == begin)
                with serial(problem.r) as r, serial(self.columns) as s:
                    packing[1].pack(g, unit, (r, s))
                    place = bind(
                        i * self.size + (g * self.taps + r * self.columns + s) * self.tap_step
                    )
                    with (
                        serial(blocks[1] - blocks[0]) as b,
                        serial(channels[1] - channels[0]) as t,
                    ):
                        at = bind(
                            place + ((blocks[0] + b) * self.tiles + channels[0] + t) * 4 * _SUMS
                        )
                        write = self._tiles if self.has_tiles else self._pairs
                        write(parts, at, grad, b, data, t, is_new)
            scratch.keep()
            if self.has_tiles:
                matrix.TILES.release()

    def _tiles(
        self, sums: Expr, at: Expr, grad: Expr, b: Expr, data: Expr, t: Expr, is_new: Expr
    ) -> None:
        """2 x 2 tiles of sums over one unit of pixels."""
        tiles = matrix.TILES
        with T.If(is_new):
            with T.Then():
                for i in range(4):
                    tiles.zero(i)
            with T.Else():
                for i in range(4):
                    tiles.load(i, sums, at + i * _SUMS, SUMS)
        with serial(self.lines.chunks) as c:
            for i in range(2):
                tiles.load(4 + i, grad, (2 * b + i) * self.step + c * _TILE, PAIR)
                tiles.load(6 + i, data, (2 * t + i) * self.step + c * _TILE, PAIR)
            for i in range(4):
                tiles.product(i, 4 + i // 2, 6 + i % 2)
        for i in range(4):
            tiles.store(i, sums, at + i * _SUMS, SUMS)

    def _pairs(
        self, sums: Expr, at: Expr, grad: Expr, b: Expr, data: Expr, t: Expr, is_new: Expr
    ) -> None:
        """The same sums, of a few filters at a time in registers."""
        values, terms = view(grad, PAIR_BITS), view(data, PAIR_BITS)
        step = self.step // 2
        with serial(2) as i, serial(SUMS // _FILTERS) as part:
            acc = local("acc", _FILTERS * _BLOCK, "float32")

            def each() -> Iterator[tuple[Expr, Expr]]:
                for k in range(_FILTERS):
                    for v in range(2):
                        there = at + (2 * i + v) * _SUMS + (part * _FILTERS + k) * SUMS
                        yield vector((2 * k + v) * SUMS, SUMS), vector(there, SUMS)

            with T.If(is_new):
                with T.Then():
                    for register, _ in each():
                        T.buffer_store(acc, zero("float32", SUMS), [register])
                with T.Else():
                    for register, place in each():
                        T.buffer_store(acc, sums[place], [register])
            here = bind((2 * b + i) * step + part * _FILTERS)
            there = bind(2 * t * step)
            with serial(self.lines.chunks * ROWS) as j:
                pairs.outer(
                    acc, [values[int64(here + j * SUMS + k)] for k in range(_FILTERS)],
                    [terms[vector(there + v * step + j * SUMS, SUMS)] for v in range(2)],
                )  # fmt: skip
            for register, place in each():
                T.buffer_store(sums, acc[register], [place])

    def finish(self, sums: Expr, memory: Memory) -> None:
        """The result, of sums in tiles."""
        problem, step = self.problem, memory.strides("weight")
        target, dtype = memory.flat("weight"), problem.dtype("weight")
        filters, channels = ceildiv(self.filters, SUMS), ceildiv(self.channels, SUMS)
        grid = problem.groups, problem.r, self.columns, filters
        with parallel(*grid) as (g, r, s, k), serial(channels) as c:
            tap = bind((g * self.taps + r * self.columns + s) * self.tap_step)
            at = bind(tap + ((k // 2 * self.tiles + c // 2) * 4 + k % 2 * 2 + c % 2) * _SUMS)
            there = bind(
                (g * self.filters + k * SUMS) * step["O"] + c * SUMS * step["I"]
                + r * step["H"] + s * step["W"]
            )  # fmt: skip
            rows, row_step = (self.filters, k), step["O"]
            columns, column_step = (self.channels, c), step["I"]
            values = [bind(sums[vector(at + i * SUMS, SUMS)]) for i in range(SUMS)]
            if step["O"] == 1:
                values = transposed(values)
                rows, columns, row_step, column_step = columns, rows, column_step, row_step
            for i, value in enumerate(values):
                exists = rows[0] % SUMS == 0 or rows[1] * SUMS + i < rows[0]
                if exists is False:
                    continue
                for width, fits in _widths(*columns):
                    with when(conjunction(exists, fits)):
                        some = cast(head(value, SUMS, width), dtype, width)
                        place = there + i * row_step
                        T.buffer_store(target, some, [vector(place, width, column_step)])


class _Packing:
    """A task's panels of an operand: some blocks of 32 channels."""

    def __init__(
        self, core: _Core, image: Image, panels: Expr, chunk: tuple[Expr, Expr], channels: int,
        blocks: int,
    ) -> None:  # fmt: skip
        self.core = core
        self.image = image
        self.chunk = chunk
        self.channels = channels
        self.blocks = blocks
        self.source, self.target = view(image.buffer, BITS), view(panels, BITS)
        self.pairs = view(panels, PAIR_BITS)

    def pack(self, g: Expr, unit: Expr, tap: tuple[Expr, Expr] | None) -> None:
        """A unit's pairs of pixels: the gradient's own, or those of the data that a tap meets."""
        core, problem = self.core, self.core.problem
        lines = core.lines
        left, right = 0, lines.columns
        if tap and not core.is_long and not core.folds:
            left, right = reach(problem, 1, tap[1], lines.columns)
            if not isinstance(left, int) or not isinstance(right, int):
                left = bind(T.min(left, lines.columns))
                right = at_least(right, left)
        with serial(lines.each) as number:
            places, exist = [], []
            for i in range(2):
                line = bind((unit * lines.each + number) * 2 + i)
                place, exists = self._line(g, line, tap)
                places.append(place)
                exist.append(exists)
            columns = self._step(tap)

            def copy(q: Expr, whole: bool) -> None:
                j = bind(number * lines.columns + q)
                there = bind(j // ROWS * _TILE + j % ROWS * PAIR)
                here = [bind(place + q * columns) for place in places]
                guards = (
                    [True, True]
                    if whole
                    else [
                        self._has(exists, line, q, (left, right))
                        for line, exists in enumerate(exist)
                    ]
                )
                self._blocks(here, there, guards)

            both = conjunction(exist[0][1], exist[1][1])
            with T.If(both):
                with T.Then():
                    with serial(right, left) as q:
                        copy(q, True)
                    for first, last in ((0, left), (right, lines.columns)):
                        if not (isinstance(first, int) and isinstance(last, int) and first == last):
                            with serial(last, first) as q:
                                self._zeros(bind(number * lines.columns + q))
                with T.Else(), serial(lines.columns) as q:
                    copy(q, False)

        with serial(lines.chunks * ROWS, lines.each * lines.columns) as j:
            self._zeros(j)

    def _line(
        self, g: Expr, line: Expr, tap: tuple[Expr, Expr] | None
    ) -> tuple[Expr, tuple[Expr, Expr, Expr]]:
        """Where a line's first pixel is; its number, and whether it is there and is whole."""
        core, problem, image = self.core, self.core.problem, self.image
        lines = core.lines
        exists = line < lines.count
        if core.is_long:
            place = image.at(0, 0, 0, g) + line * (lines.columns * image.w_step)
            whole = exists if lines.are_whole else (line + 1) * lines.columns <= lines.total
            return bind(place), (line, whole, exists)
        n, row = bind(line // problem.p), bind(line % problem.p)
        column: Expr = 0
        if tap:
            row = bind(row * problem.strides[0] + tap[0] * problem.dilation[0] - problem.padding[0])
            column = tap[1] * problem.dilation[1] - problem.padding[1]
            exists = tirx.all(exists, row >= 0, row < problem.h)
        return bind(image.at(n, row, column, g)), (line, bind(exists), exists)

    def _has(
        self, known: tuple[Expr, Expr, Expr], number: int, q: Expr, columns: tuple[Expr, Expr]
    ) -> Expr:
        """Whether a line has a pixel in column q."""
        line, whole, _ = known
        lines = self.core.lines
        if self.core.is_long:
            return line * lines.columns + q < lines.total
        return tirx.all(whole, q >= columns[0], q < columns[1])

    def _step(self, tap: tuple[Expr, Expr] | None) -> Expr:
        return self.image.w_step * (self.core.problem.strides[1] if tap else 1)

    def _each(self, do: Callable[[Expr, int], None]) -> None:
        """For each block of the chunk: (its number in it, its channels)."""
        begin, end = self.chunk
        rest = self.channels % _BLOCK
        if not rest:
            with serial(end - begin) as b:
                do(b, _BLOCK)
            return
        last = self.blocks - 1
        full = (
            bind(T.min(int64(end), int64(last)) - begin)
            if not isinstance(end, int)
            else last - begin
        )
        with serial(full) as b:
            do(b, _BLOCK)
        with when(True if isinstance(end, int) else end == self.blocks):
            do(full, rest)

    def _blocks(self, here: list[Expr], there: Expr, guards: list[Expr]) -> None:
        """A pair of pixels, all blocks of the chunk."""

        def read(i: int, b: Expr, start: Expr, count: int) -> Expr:
            value = self.source[vector(here[i] + (self.chunk[0] + b) * _BLOCK + start, count)]
            if guards[i] is True:
                return bind(value)
            return bind(T.if_then_else(guards[i], value, zero(BITS, count)))

        def block(b: Expr, count: int) -> None:
            at = bind(2 * b * self.core.step + there)
            if count == _BLOCK:
                both = [read(i, b, 0, _BLOCK) for i in (0, 1)]
                for i in (0, 1):
                    order = [x % SUMS + i * SUMS + _BLOCK * (x // SUMS) for x in INTERLEAVED]
                    value = tirx.Shuffle(both, order)
                    T.buffer_store(self.target, value, [vector(at + i * self.core.step, PAIR)])
                return
            for i in (0, 1):
                place = vector(at + i * self.core.step, PAIR)
                T.buffer_store(self.target, zero(BITS, PAIR), [place])
            for start, lanes in _pieces(count):
                both = [read(i, b, start, lanes) for i in (0, 1)]
                place = at + start // SUMS * self.core.step + start % SUMS * 2
                order = [x // 2 + lanes * (x % 2) for x in range(2 * lanes)]
                value = tirx.Shuffle(both, order)
                T.buffer_store(self.target, value, [vector(place, 2 * lanes)])

        self._each(block)

    def _zeros(self, j: Expr) -> None:
        """No pair."""
        there = bind(j // ROWS * _TILE + j % ROWS * PAIR)
        begin, end = self.chunk
        with serial((end - begin) * 2) as b:
            T.buffer_store(
                self.target, zero(BITS, PAIR), [vector(there + b * self.core.step, PAIR)]
            )

    def transpose(self) -> None:
        """Rows of pairs of one filter each, of tiles whose rows are pairs."""
        begin, end = self.chunk
        half = PAIR // 2
        with serial((end - begin) * 2 * self.core.lines.chunks) as tile:
            at = [bind(tile * (_TILE // 2) + i * half) for i in range(ROWS)]
            rows = [bind(self.pairs[vector(place, half)]) for place in at]
            for place, row in zip(at, transposed(rows), strict=True):
                T.buffer_store(self.pairs, row, [vector(place, half)])


def _chunk(number: Expr, size: int, total: int) -> tuple[Expr, Expr]:
    """(begin, end) of a chunk; an int where there is one alone."""
    if size >= total:
        return 0, total
    begin = bind(number * size)
    return begin, bind(T.min(int64(begin + size), int64(total)))


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """(start, lanes) of vectors of so many elements, of which none crosses a block of 16."""
    start = 0
    while start < count:
        lanes = min(SUMS, 1 << (count - start).bit_length() - 1)
        yield start, lanes
        start += lanes


def _widths(count: int, number: Expr) -> list[tuple[int, Expr]]:
    """(elements, the condition that block `number` of 16 has so many)"""
    rest, last = count % SUMS, ceildiv(count, SUMS) - 1
    if not rest:
        return [(SUMS, True)]
    return [(rest, True)] if not last else [(SUMS, number < last), (rest, number == last)]
