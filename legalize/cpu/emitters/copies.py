"""Copies between a tensor in the caller's layout and the channel-last memory that cores work on.

One routine serves activations and weights in both directions.  A tensor is a grid of `Dim`s with
a stride on each side, and one of them, the *lane*, is what cores hold in vector registers.  Where
the caller's memory runs along the lane too, vectors are copied; where it runs along something
else, square tiles are transposed in registers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.building.parts import part

from .loops import (  # fmt: skip
    Expr,
    bind,
    cast,
    ceildiv,
    digits,
    int64,
    is_worth_waking,
    one_core,
    parallel,
    serial,
    vector,
    view,
    when,
)


@dataclass(frozen=True)
class Dim:
    """An axis of a copy: its length, and its step in the caller's and in the cores' memory."""

    extent: Expr
    user: Expr
    core: Expr


@dataclass(frozen=True)
class Copy:
    """What to copy.  `dims` are in the order of the caller's layout, without the lane.

    In the cores' memory the lane comes in blocks: element c is at (c // block) * block_step +
    c % block.
    """

    user: Expr
    user_dtype: str
    core: Expr
    core_dtype: str
    core_base: Expr
    dims: Sequence[Dim]
    lane: Dim
    block: int
    block_step: int
    to_core: bool
    user_base: Expr = 0

    @property
    def is_blocked(self) -> bool:
        return bool(self.block_step != self.block)

    def lane_at(self, c: Expr) -> Expr:
        if not self.is_blocked:
            return c
        return c // self.block * self.block_step + c % self.block

    def get(self, user: Expr, core: Expr, lanes: int, wide: str) -> Expr:
        """Reads `lanes` elements from the side that is read, as dtype `wide`."""
        buffer, at = (self.user, user) if self.to_core else (self.core, core)
        return cast(buffer[vector(at, lanes)], wide, lanes)

    def put(self, value: Expr, user: Expr, core: Expr, lanes: int) -> None:
        """Writes `lanes` elements to the side that is written."""
        buffer, at, dtype = (
            (self.core, core, self.core_dtype)
            if self.to_core
            else (self.user, user, self.user_dtype)
        )
        T.buffer_store(buffer, cast(value, dtype, lanes), [vector(at, lanes)])


# Elements of a lane that are worth a task; of shorter lanes in one, at least.
_LONG, _WORTH = 1024, 4096
_BITS = "uint16"
# Of a transposed tile, at most: one of 32 is 160 shuffles of 32 lanes, which compile three times as
# long as 64 of 16, and up to 31 columns that are left over are gathered one by one.
_SIDE = 16
_SHORT_LOOP = 16  # LLVM's vectorizer-min-trip-count


def move(copy: Copy, lanes: int) -> None:
    """Emits the copy, with vectors of at most `lanes` elements."""
    lanes = min(lanes, copy.block)
    if copy.user_dtype == copy.core_dtype == "bfloat16":  # nothing to compute
        user, core = view(copy.user, _BITS), view(copy.core, _BITS)
        copy = replace(copy, user=user, core=core, user_dtype=_BITS, core_dtype=_BITS)
    count = math.prod(d.extent for d in (*copy.dims, copy.lane))
    with contextlib.nullcontext() if is_worth_waking(count) else one_core(True):
        if isinstance(copy.lane.user, int) and copy.lane.user == 1:
            _along_lanes(copy, lanes)
        else:
            _across_lanes(copy, min(lanes, _SIDE))


def _along_lanes(copy: Copy, lanes: int) -> None:
    if copy.is_blocked:
        _along_blocks(copy, lanes)
        return
    outer, lane = list(copy.dims), copy.lane
    while len(outer) > 1 and lane.extent < _LONG:
        inner = outer[-1]
        steps = (inner.extent, inner.user, inner.core)
        if not all(isinstance(x, int) for x in steps) or steps[1:] != (lane.extent, lane.extent):
            break
        # Contiguous on both sides: one longer lane.
        lane = Dim(lane.extent * inner.extent, 1, 1)
        outer.pop()
    # Short lanes come several to a task, as finding a task's place takes some divisions.
    several = [] if lane.extent >= _LONG else [outer.pop()]
    if several and isinstance(several[0].extent, int):
        # But no more than are worth one: a 1x1 kernel's weights are a single run of lanes.
        each, dim = _pieces(several[0].extent, lane.extent), several.pop()
        outer.append(Dim(dim.extent // each, dim.user * each, dim.core * each))
        several.append(replace(dim, extent=each))
    with parallel(*(d.extent for d in outer)) as index:
        user = bind(_offset(index, outer, "user") + copy.user_base)
        core = bind(_offset(index, outer, "core") + copy.core_base)
        with serial(several[0].extent if several else 1) as i:
            here = user + i * several[0].user if several else user
            there = core + i * several[0].core if several else core
            _copy_run(copy, here, there, lane.extent, lanes)


def _copy_run(copy: Copy, user: Expr, core: Expr, count: int, lanes: int) -> None:
    """Copies neighbours, as vectors and a shorter one."""

    def chunk(start: Expr, some: int) -> None:
        at = user + start, core + start
        copy.put(copy.get(*at, some, copy.core_dtype), *at, some)

    full, tail = divmod(count, lanes)
    if full:
        with serial(full) as v:
            chunk(v * lanes, lanes)
    if tail:
        chunk(full * lanes, tail)


def _along_blocks(copy: Copy, lanes: int) -> None:
    """Block by block: the thread that copies a block's first part is about the one that reads it,
    and lines that another core has written come slowly."""
    outer, block = list(copy.dims), copy.block
    inner: list[Dim] = []  # of a task, which may be half as long as is worth one
    while outer and math.prod(d.extent for d in inner) * block < _WORTH // 2:
        dim = outer.pop()
        each = _pieces(dim.extent, math.prod(d.extent for d in inner) * block)
        outer.append(Dim(dim.extent // each, dim.user * each, dim.core * each))
        inner.insert(0, replace(dim, extent=each))
        if each < dim.extent:
            break
        outer.pop()
    blocks, rest = ceildiv(copy.lane.extent, block), copy.lane.extent % block
    widths: list[tuple[int, Expr]] = [(block, True)]
    with parallel(blocks, *(d.extent for d in outer)) as (number, *index):
        if rest:
            widths = [(block, number < blocks - 1), (rest, number == blocks - 1)]
            widths = widths if blocks > 1 else [(rest, True)]
        user = bind(_offset(index, outer, "user") + copy.user_base + number * block)
        core = bind(_offset(index, outer, "core") + copy.core_base + number * copy.block_step)
        sizes = [d.extent for d in inner]
        for width, is_so_wide in widths:
            with when(is_so_wide), serial(math.prod(sizes)) as i:
                place = digits(i, sizes)
                here = bind(user + _offset(place, inner, "user"))
                there = bind(core + _offset(place, inner, "core"))
                _copy_run(copy, here, there, width, lanes)


def _pieces(extent: int, lane: int) -> int:
    """Of so many lanes, those of a task: a divisor."""
    return next(
        x for x in range(1, extent + 1) if extent % x == 0 and (x * lane >= _WORTH or x == extent)
    )


def _across_lanes(copy: Copy, side: int) -> None:
    outer, run = _split_run(copy.dims)
    length = math.prod(d.extent for d in run)
    if not isinstance(length, int):  # a symbolic batch innermost: no tiles
        outer, run, length = list(copy.dims), [], 1
    columns = _Columns(copy, side, outer, run)
    full, tail = divmod(length, side)
    sizes = [d.extent for d in outer]
    whole, rest = divmod(copy.lane.extent, side) if side > 1 else (0, copy.lane.extent)
    if copy.is_blocked and whole and full:
        # Weights: a few rows are read from end to end, which hardware prefetches.
        # A block's are neighbours, as in `_along_blocks`.
        of_block, tiles = min(copy.block // side, whole), ceildiv(length, side)
        each = min(tiles, ceildiv(_WORTH, side * side))
        grid = ceildiv(whole, of_block), *sizes, of_block, ceildiv(tiles, each)
        with parallel(*grid) as (block, *index, tile, piece):
            tile, begin = bind(block * of_block + tile), bind(piece * each)
            end = each if tiles % each == 0 else bind(tirx.min(int64(each), tiles - begin))
            with when(tile < whole if whole % of_block else True):
                columns.start(index)
                c = bind(tile * side)
                with serial(end) as number:
                    first = _start(begin + number, length, side)
                    columns.tile(columns.places(first, side), first, c)
        if rest:
            with parallel(*sizes) as index:
                columns.start(index)
                with _written(copy, length) as at:
                    columns.scalars(columns.places(at, 1), at, whole * side, rest)
        return
    with parallel(*sizes, ceildiv(length, side)) as (*index, number):
        columns.start(index)
        first, count = (_start(number, length, side), side) if full else (0, tail)
        places = columns.places(first, count)
        if whole:
            with serial(whole) as tile:
                emit = columns.tile if full else columns.strided
                emit(places, first, bind(tile * side))
        if rest:
            columns.scalars(places, first, whole * side, rest)


def _start(number: Expr, length: int, side: int) -> Expr:
    """Where a tile of columns begins: the last one ends with the run, and copies again some that
    its neighbour does, to the same."""
    first = number * side
    return bind(first if length % side == 0 else tirx.min(first, int64(length - side)))


def _written(copy: Copy, length: int) -> Any:
    """A loop over neighbours that are written one by one.

    LLVM 22 makes one masked vector of the last steps of a loop of fewer than 16.  For AVX-512 it
    writes 32 bits where that vector has one element, converted to 16 by shifts, as bfloat16 is of
    float64: the next element is lost, or what follows the tensor.  Written out there is no loop.
    """
    if not copy.to_core and copy.user_dtype == "bfloat16" and length < _SHORT_LOOP:
        return T.unroll(int64(0), int64(length))
    return serial(length)


class _Columns:
    """Copies of consecutive elements of the run (columns) for some lanes (rows of a tile)."""

    def __init__(self, copy: Copy, side: int, outer: list[Dim], run: list[Dim]) -> None:
        self.copy = copy
        self.side = side
        self.outer = outer
        self.run = run
        self.user: Expr = 0
        self.core: Expr = 0

    def start(self, index: Sequence[Expr]) -> None:
        """Fixes the indices of all dims outside the run."""
        self.user = bind(_offset(index, self.outer, "user") + self.copy.user_base)
        self.core = bind(_offset(index, self.outer, "core") + self.copy.core_base)

    @property
    def is_even(self) -> bool:
        """Whether each column is as far from the next in the cores' memory."""
        return len(self.run) == 1

    def places(self, first: Expr, count: int) -> list[Expr]:
        """Where `count` elements of the run are in the cores' memory."""
        if self.is_even:
            start = bind(self.core + first * self.run[0].core)
            return [start + j * self.run[0].core for j in range(count)]
        found = []
        for j in range(count):
            split = digits(first + j, [d.extent for d in self.run]) if self.run else []
            found.append(bind(self.core + _offset(split, self.run, "core")))
        return found

    def tile(self, places: list[Expr], first: Expr, c: Expr) -> None:
        """A square tile, transposed in registers."""
        copy, side, step, even = self.copy, self.side, self.copy.lane.user, self.is_even
        start, lane = bind(self.user + first + c * step), bind(copy.lane_at(c))
        core = bind(places[0] + lane) if even else lane

        def write(user: Expr, step: Expr, core: Expr, *places: Expr) -> None:
            columns = [j * places[0] for j in range(side)] if even else places
            _square(replace(copy, user=user, core=core), [i * step for i in range(side)], columns)

        direction, form = "in" if copy.to_core else "out", "even" if even else "apart"
        name = f"transposed_{direction}_{form}_{side}_{copy.user_dtype}_{copy.core_dtype}"
        begin = tirx.address_of(copy.user[int64(start)]), tirx.address_of(copy.core[int64(core)])
        where = [self.run[0].core] if even else places
        with part(name, [begin[0], int64(step), begin[1], *map(int64, where)], write):
            rows = [start + i * step for i in range(side)]
            _square(copy, rows, [place + lane for place in places])

    def strided(self, places: list[Expr], first: Expr, c: Expr) -> None:
        """Fewer columns than a tile has: each is a vector with a stride in the caller's memory."""
        copy = self.copy
        if not copy.to_core:
            self.scalars(places, first, c, self.side)
            return
        lane = bind(copy.lane_at(c))
        for j, place in enumerate(places):
            index = vector(self.user + first + j + c * copy.lane.user, self.side, copy.lane.user)
            value = cast(copy.user[index], copy.core_dtype, self.side)
            copy.put(value, 0, place + lane, self.side)

    def scalars(self, places: list[Expr], first: Expr, c: Expr, count: int) -> None:
        """Element by element."""
        copy = self.copy
        with serial(count) as i:
            lane = bind(c + i)
            row = bind(self.user + first + lane * copy.lane.user)
            for j, place in enumerate(places):
                at = row + j, place + copy.lane_at(lane)
                copy.put(copy.get(*at, 1, copy.core_dtype), *at, 1)


def _square(copy: Copy, rows: Sequence[Expr], columns: Sequence[Expr]) -> None:
    """Of vectors that begin there in the caller's and in the cores' memory."""
    source, target = (rows, columns) if copy.to_core else (columns, rows)
    values = [bind(copy.get(at, at, len(rows), copy.core_dtype)) for at in source]
    for at, value in zip(target, transposed(values), strict=True):
        copy.put(value, at, at, len(rows))


def _split_run(dims: Sequence[Dim]) -> tuple[list[Dim], list[Dim]]:
    """The innermost dims that are one run of the caller's memory, and the others; neighbours that
    are one run of the cores' memory too are one dim."""
    outer, run = list(dims), list[Dim]()
    length: Expr = 1
    while outer and isinstance(outer[-1].user, int) and outer[-1].user == length:
        dim = outer.pop()
        length = length * dim.extent
        if run and isinstance(length, int) and dim.core == run[0].core * run[0].extent:
            run[0] = replace(run[0], extent=dim.extent * run[0].extent)
        elif not isinstance(length, int) or dim.extent != 1:
            run.insert(0, dim)
        if not isinstance(length, int):
            break
    return outer, run


def _offset(index: Sequence[Expr], dims: Sequence[Dim], side: str) -> Expr:
    total: Expr = 0
    for i, dim in zip(index, dims, strict=True):
        total = total + i * getattr(dim, side)
    return total


def transposed(rows: list[Expr]) -> list[Expr]:
    """A square tile's columns, by swapping the halves of ever smaller blocks."""
    side = len(rows)
    rows = list(rows)
    step = side // 2
    while step:
        for i in range(side):
            if i & step:
                continue
            a, b = rows[i], rows[i + step]
            upper = [k if not k & step else side + k - step for k in range(side)]
            lower = [k + step if not k & step else side + k for k in range(side)]
            rows[i] = bind(tirx.Shuffle([a, b], upper))
            rows[i + step] = bind(tirx.Shuffle([a, b], lower))
        step //= 2
    return rows


def clear(buffer: Expr, dtype: str, count: Expr, lanes: int) -> None:
    """Fills memory with zeros."""
    with parallel(ceildiv(count, lanes)) as (i,):
        at = i * lanes
        if isinstance(count, int) and count % lanes == 0:
            _zero(buffer, dtype, at, lanes)
            return
        with serial(lanes) as j, when(at + j < count):
            _zero(buffer, dtype, at + j, 1)


def _zero(buffer: Expr, dtype: str, at: Expr, lanes: int) -> None:
    value = tirx.const(0, dtype)
    T.buffer_store(
        buffer, value if lanes == 1 else tirx.Broadcast(value, lanes), [vector(at, lanes)]
    )


def clear_border(
    buffer: Expr,
    dtype: str,
    size: tuple[Expr, int, int, int],
    border: tuple[int, int, int, int],
    lanes: int,
) -> None:
    """Zeros around each image of (images, rows, columns, channels), border included in the size."""
    images, rows, columns, channels = size
    top, left, bottom, right = border
    step = next(v for v in range(min(lanes, channels), 0, -1) if channels % v == 0)

    def run(row: Expr, first: int, count: int) -> None:
        if count:
            with serial(count * (channels // step)) as i:
                _zero(buffer, dtype, (row * columns + first) * channels + i * step, step)

    with parallel(images, rows) as (image, row):
        place = bind(image * rows + row)

        def sides() -> None:
            run(place, 0, left)
            run(place, columns - right, right)

        if not top and not bottom:
            sides()
            return
        outside: Callable[..., Expr] = tirx.any
        with T.If(outside(row < top, row >= rows - bottom)):
            with T.Then():
                run(place, 0, columns)
            if left or right:
                with T.Else():
                    sides()
