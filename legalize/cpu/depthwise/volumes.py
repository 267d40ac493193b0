"""fprop of depthwise convolutions of three dimensions, of as many filters as channels, and dgrad of
stride 1, which is fprop by the taps in reverse with another padding, perhaps a negative one.  wgrad
is the kernel of two dimensions (`register_sums`), plane by plane.

With depth as channels (`legalize.cpu.volume`) each would be a group of a few channels, whose
kernels fill no vector.  Where channels are last they fill the vectors, as in two dimensions; where
they are outside columns do, of a channel's volume that is copied with its border.
"""

from __future__ import annotations

import itertools
import math
from itertools import groupby

from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from ..emitters.axes import Axis
from ..emitters.copies import Copy, Dim, move
from ..emitters.loops import (
    Expr,
    Scratch,
    bind,
    cast,
    int64,
    local,
    parallel,
    serial,
    splat,
    store_head,
    vector,
    zero,
)
from ..emitters.memory import Memory
from ..machine import Machine
from ..volume import Volume
from .kernels import write_sums

NAME = "depthwise volume"
REASON = "one channel per group in three dimensions: channels, or columns, fill the vectors"
_MOST_WRITTEN = 6  # tiles that meet the border
_UNROLLED = 3  # taps of a row that are written out


def applies(problem: ConvProblem, m: Machine) -> bool:
    """Whether this is the kernel of a problem of three dimensions."""
    if problem.groups != problem.c or problem.k != problem.c or problem.c == 1:
        return False
    if problem.kind is ConvKind.WGRAD:
        return problem.c >= m.lanes(problem.accum_dtype) // 2
    return _is_affine(problem) and _is_short(_shape(problem, m)[1])


def _is_affine(problem: ConvProblem) -> bool:
    dgrad = problem.kind is ConvKind.DGRAD and problem.strides == (1, 1, 1)
    return dgrad or problem.kind is ConvKind.FPROP


def _axes(problem: ConvProblem) -> list[Axis]:
    """As of an fprop, from the first operand to the result."""
    p, (operand, _, result) = problem, problem.roles
    sizes, outs = p.canonical_shape(operand)[2:], p.canonical_shape(result)[2:]
    before = p.padding[:3]
    if p.kind is ConvKind.DGRAD:
        reach = [(taps - 1) * step for taps, step in zip(p.taps, p.dilation, strict=True)]
        before = tuple(far - own for far, own in zip(reach, before, strict=True))
    return [
        Axis(False, sizes[i], outs[i], p.taps[i], p.strides[i], p.dilation[i], before[i])
        for i in range(3)
    ]


def _tiles(columns: Axis, most: int) -> list[tuple[int, bool, int]]:
    """Of each tile its first column, whether all its taps are on the data, and its columns."""
    wide = -(-columns.count // -(-columns.count // min(columns.count, most)))
    found = []
    for begin in range(0, columns.count, wide):
        width = min(wide, columns.count - begin)
        low = begin * columns.stride - columns.before
        high = (begin + width - 1) * columns.stride - columns.before
        inner = low >= 0 and high + (columns.kernel - 1) * columns.dilation < columns.size
        found.append((begin, inner and width == wide, width))
    return found


def _shape(problem: ConvProblem, m: Machine) -> tuple[int, list[tuple[int, bool, int]]]:
    """(vectors of channels in a tile, `_tiles`).

    Of a pixel's many lines a tile of one vector would read one: those of some rows compete for
    places in a level-1 cache, and memory is read by neighbours.  So tiles have 4 vectors, or 2, of
    half as many sums as there are registers, where a row has room and channels are enough.
    """
    columns, sums = _axes(problem)[2], m.registers // 2
    for vectors in (4, 2):
        tiles = _tiles(columns, sums // vectors)
        has_room = columns.count > sums // vectors or vectors == 2
        if has_room and problem.c >= vectors * m.lanes(problem.accum_dtype) and _is_short(tiles):
            return vectors, tiles
    return 1, _tiles(columns, min(m.registers - 4, 14))


def _is_short(tiles: list[tuple[int, bool, int]]) -> bool:
    """Whether few tiles are written out, those that meet the border."""
    return sum(not inner for _, inner, _ in tiles) <= _MOST_WRITTEN


def write(problem: ConvProblem, m: Machine, buffers: dict[str, Expr]) -> None:
    """The whole kernel: operands in, tiles, result out."""
    if problem.kind is ConvKind.WGRAD:
        memory = Memory(problem, buffers, problem.accum_dtype, m)
        write_sums(problem, m, memory)
        memory.scratch.keep()
        return
    p, v = problem, Volume(problem, m, buffers)
    operand, _, result = p.roles
    if p.strides[2] == 1 and all(_plain(p, role, "NCDHW") for role in (operand, result)):
        _Columns(p, m, v).write()
        return
    x = v.flat(operand) if _plain(p, operand) else v.channels_last(operand, True)
    weights = v.scratch.new("weight_flat", p.t * p.r * p.s * p.c, p.accum_dtype)
    step = v.steps("weight")
    taps = {
        "D": Dim(p.t, step["D"], p.r * p.s * p.c), "H": Dim(p.r, step["H"], p.s * p.c),
        "W": Dim(p.s, step["W"], p.c),
    }  # fmt: skip
    dims = [taps[letter] for letter in p.layout("weight") if letter in taps]
    lane, block = Dim(p.c, step["O"], 1), 1 << 30
    move(
        Copy(v.flat("weight"), p.weight_dtype, weights, p.accum_dtype, 0, dims, lane, block, block,
             True),
        v.lanes,
    )  # fmt: skip
    plain = _plain(p, result)
    y = v.flat(result) if plain else v.channels_last(result, False)
    _Tiles(p, m, x, weights, y).write(v.lanes)
    if not plain:
        v.to_caller(result, y)
    v.scratch.keep()


def _plain(problem: ConvProblem, role: str, layout: str = "NDHWC") -> bool:
    return (problem.layout(role), problem.dtype(role)) == (layout, problem.accum_dtype)


class _Tiles:
    """The tiles of all rows: x and y are NDHWC, w has the taps and then channels, of one dtype."""

    def __init__(self, problem: ConvProblem, m: Machine, x: Expr, w: Expr, y: Expr) -> None:
        self.problem, self.x, self.w, self.y = problem, x, w, y
        self.axes = _axes(problem)
        self.vectors, self.tiles = _shape(problem, m)

    def write(self, lanes: int) -> None:
        p = self.problem
        depths, rows, _ = self.axes
        with parallel(p.n, depths.out, rows.out) as row:
            start = 0
            for vectors, of in ((self.vectors, lanes), (1, lanes), (1, p.c % lanes)):
                count = (p.c - start) // (vectors * of) if of else 0
                if count:
                    with serial(count) as chunk:
                        self._row(row, bind(start + chunk * (vectors * of)), vectors, of)
                start += count * vectors * of

    def _row(self, row: list[Expr], at: Expr, vectors: int, lanes: int) -> None:
        """All columns of a row, of so many vectors of channels from `at` on."""
        for inner, run in groupby(self.tiles, key=lambda one: one[1]):
            tiles = list(run)
            if not inner or len(tiles) == 1:
                for begin, _, width in tiles:
                    self._tile(row, at, vectors, lanes, begin, width)
                continue
            first, _, width = tiles[0]
            with serial(len(tiles)) as number:
                self._tile(row, at, vectors, lanes, bind(number * width + first), width)

    def _tile(
        self, row: list[Expr], at: Expr, vectors: int, lanes: int, begin: Expr, width: int
    ) -> None:
        """So many columns from `begin` on; where that is no number all taps are on the data."""
        p, (n, z, a) = self.problem, row
        accum, many = p.accum_dtype, range(vectors)
        registers = [[vector((i * vectors + v) * lanes, lanes) for v in many] for i in range(width)]
        acc = local("acc", width * vectors * lanes, accum)
        for i in range(width * vectors):
            T.buffer_store(acc, zero(accum, lanes), [vector(i * lanes, lanes)])
        depths, rows, columns = self.axes
        begins, ends = [], []
        for position, axis in ((z, depths), (a, rows)):
            begins.append(position * axis.stride - axis.before)
            ends.append(axis.reached(axis.taps(0), position))
        loops = [serial(last, start) for start, last in ends]
        with loops[0] as t, loops[1] as r:
            d, h = begins[0] + t * depths.dilation, begins[1] + r * rows.dilation
            line = ((n * depths.size + d) * rows.size + h) * (columns.size * p.c)
            line = bind(line + at)
            tap = t * p.r + r
            if p.kind is ConvKind.DGRAD:
                tap = p.t * p.r - 1 - tap
            taps = bind(tap * (p.s * p.c) + at)

            def products(s: Expr) -> None:
                own = p.s - 1 - s if p.kind is ConvKind.DGRAD else s
                values = [bind(self.w[vector(taps + own * p.c + v * lanes, lanes)]) for v in many]
                for i, of_pixel in enumerate(registers):
                    column = (begin + i) * columns.stride + s * columns.dilation - columns.before
                    if isinstance(column, int) and not 0 <= column < columns.size:
                        continue
                    for v, register in enumerate(of_pixel):
                        data = self.x[vector(line + column * p.c + v * lanes, lanes)]
                        T.buffer_store(acc, acc[register] + data * values[v], [register])

            if isinstance(begin, int) or p.s <= _UNROLLED:
                for s in range(p.s):
                    products(s)
            else:
                with serial(p.s) as s:
                    products(s)
        place = ((n * depths.out + z) * rows.out + a) * (columns.out * p.c)
        place = bind(place + begin * p.c + at)
        for i, of_pixel in enumerate(registers):
            for v, register in enumerate(of_pixel):
                there = vector(place + i * p.c + v * lanes, lanes)
                T.buffer_store(self.y, acc[register], [there])


_HELD = 9  # taps that wait in registers
_SUMS, _FEW_SUMS = 16, 12  # vectors of a tile's sums, at most


class _Columns:
    """Each channel's volume by itself, with vectors of columns.

    A ring has copies of the planes that a plane of results reads, with zeros around their rows: it
    stays in a level-1 cache, where a whole volume would not.
    """

    def __init__(self, problem: ConvProblem, m: Machine, v: Volume) -> None:
        operand, _, result = problem.roles
        self.problem, self.lanes, self.axes = problem, v.lanes, _axes(problem)
        self.x, self.w, self.y = v.flat(operand), v.flat("weight"), v.flat(result)
        self.steps = v.steps("weight")
        depths, rows, columns = self.axes
        self.slots = min((depths.kernel - 1) * depths.dilation + 1, depths.size)
        self.high, self.read = (
            (axis.out - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
            for axis in (rows, columns)
        )
        # A vector that begins in the midst of a cache line takes two: the middle tap's do not.
        self.margin = -(columns.kernel // 2) * columns.dilation % self.lanes
        self.wide = -(-(self.margin + self.read) // self.lanes) * self.lanes
        self.vectors = -(-columns.out // self.lanes)
        self.most = 3 if m.has_few_registers else 4  # vectors of a tile's row
        # So it should be read once, too.
        self.shares_rows = (
            not m.has_few_registers
            and problem.r * problem.s <= _HELD
            and rows.stride == rows.dilation == 1
        )
        sums = _FEW_SUMS if m.has_few_registers else _SUMS
        most = sums // min(self.vectors, self.most)
        self.rows = -(-rows.out // -(-rows.out // most))  # of tiles that are about equal

    def write(self) -> None:
        p, accum = self.problem, self.problem.accum_dtype
        depths, rows, _ = self.axes
        stride, last = depths.stride, (depths.kernel - 1) * depths.dilation - depths.before
        with parallel(p.n, p.c) as (n, c):
            scratch = Scratch()
            # The last row's last vector may begin with its last column.
            size = self.slots * self.high * self.wide + self.lanes
            ring = scratch.new("planes", size, accum)
            for start, some, lanes in _vectors(size, self.lanes):
                with serial(some) as i:
                    T.buffer_store(ring, zero(accum, lanes), [vector(start + i * lanes, lanes)])
            image = n * p.c + c
            source = bind(image * math.prod(axis.size for axis in self.axes))
            weights = bind(c * self.steps["O"])
            self._copy(ring, source, max(0, -depths.before), min(last + 1 - stride, depths.size))
            high, rest = divmod(rows.out, self.rows)
            with serial(depths.out) as z:
                first, end = bind(z * stride - depths.before), bind(z * stride + last + 1)
                begin = bind(T.max(T.max(first, end - stride), int64(0)))
                self._copy(ring, source, begin, bind(T.min(end, int64(depths.size))))
                out = bind((image * depths.out + z) * rows.out)
                if high:
                    with serial(high) as number:
                        self._rows(ring, weights, out, z, bind(number * self.rows), self.rows)
                if rest:
                    self._rows(ring, weights, out, z, high * self.rows, rest)
            scratch.keep()

    def _copy(self, ring: Expr, image: Expr, begin: Expr, end: Expr) -> None:
        """The planes [begin, end) of the data, each to its slot of the ring."""
        if isinstance(begin, int) and isinstance(end, int) and begin >= end:
            return
        _, rows, columns = self.axes
        first = [max(0, -axis.before) for axis in (rows, columns)]  # that is read
        here = [max(0, axis.before) for axis in (rows, columns)]
        high = min(rows.size - first[0], self.high - here[0])
        wide = min(columns.size - first[1], self.read - here[1])
        if high <= 0 or wide <= 0:
            return
        with serial(T.max(int64(end), begin), begin) as d:
            plane = bind(image + (d * rows.size + first[0]) * columns.size + first[1])
            slot = bind((d % self.slots * self.high + here[0]) * self.wide + self.margin + here[1])
            with serial(high) as h:
                source, target = bind(plane + h * columns.size), bind(slot + h * self.wide)
                for start, some, lanes in _vectors(wide, self.lanes):
                    with serial(some) as i:
                        at = start + i * lanes
                        value = self.x[vector(source + at, lanes)]
                        T.buffer_store(ring, value, [vector(target + at, lanes)])

    def _rows(self, ring: Expr, weights: Expr, out: Expr, z: Expr, a: Expr, high: int) -> None:
        """`high` rows of results from `a` on, of a depth whose first row is `out`."""
        wide = self.most
        whole = self.axes[2].out // (wide * self.lanes)
        if whole:
            with serial(whole) as number:
                self._tile(ring, weights, out, z, a, high, number * wide, wide)
        if rest := self.vectors - whole * wide:
            self._tile(ring, weights, out, z, a, high, whole * wide, rest)

    def _plane(self, z: Expr, t: Expr) -> Expr:
        """The first row of the plane that a tap of plane `z` of the results reads, in the ring."""
        depths = self.axes[0]
        return bind((z * depths.stride + t * depths.dilation - depths.before) % self.slots
                    * self.high)  # fmt: skip

    def _tile(
        self, ring: Expr, weights: Expr, out: Expr, z: Expr, a: Expr, high: int, first: Expr,
        wide: int,
    ) -> None:  # fmt: skip
        p, lanes, accum = self.problem, self.lanes, self.problem.accum_dtype
        depths, rows, columns = self.axes
        acc = local("acc", high * wide * lanes, accum)
        for i in range(high * wide):
            T.buffer_store(acc, zero(accum, lanes), [vector(i * lanes, lanes)])
        begin, end = depths.reached(depths.taps(0), z)
        if self.shares_rows:
            with serial(end, begin) as t:
                self._sum_rows(acc, ring, weights, (z, t, a), (high, wide, first))
        else:
            with serial(end, begin) as t, serial(p.r) as r:
                line = self._plane(z, t) + a * rows.stride + r * rows.dilation
                line = bind(line * self.wide + self.margin)
                dgrad = p.kind is ConvKind.DGRAD
                own = (p.t - 1 - t, p.r - 1 - r) if dgrad else (t, r)
                taps = bind(weights + own[0] * self.steps["D"] + own[1] * self.steps["H"])

                def products(s: Expr) -> None:
                    tap = p.s - 1 - s if dgrad else s
                    value = cast(self.w[int64(taps + tap * self.steps["W"])], accum, 1)
                    value = bind(splat(value, lanes))
                    for i in range(high):
                        row = line + i * rows.stride * self.wide + s * columns.dilation
                        for j in range(wide):
                            data = ring[vector(row + (first + j) * lanes, lanes)]
                            register = vector((i * wide + j) * lanes, lanes)
                            T.buffer_store(acc, acc[register] + data * value, [register])

                if p.s <= _UNROLLED:
                    for s in range(p.s):
                        products(s)
                else:
                    with serial(p.s) as s:
                        products(s)
        for i in range(high):
            place = bind((out + a + i) * columns.out + first * lanes)
            for j in range(wide):
                known = isinstance(first, int)
                left = columns.out - (first + j) * lanes if known else lanes
                start = (i * wide + j) * lanes
                store_head(self.y, place + j * lanes, acc, start, lanes, min(lanes, left))

    def _sum_rows(
        self, acc: Expr, ring: Expr, weights: Expr, where: tuple[Expr, Expr, Expr],
        size: tuple[int, int, Expr],
    ) -> None:  # fmt: skip
        """A tile's sums of a tap in depth, where each vector read serves all rows of taps."""
        p, lanes, accum = self.problem, self.lanes, self.problem.accum_dtype
        _, _, columns = self.axes
        (z, t, a), (high, wide, first) = where, size
        dgrad = p.kind is ConvKind.DGRAD
        own = weights + (p.t - 1 - t if dgrad else t) * self.steps["D"]
        values = {}
        for r, s in itertools.product(range(p.r), range(p.s)):
            row, column = (p.r - 1 - r, p.s - 1 - s) if dgrad else (r, s)
            tap = own + row * self.steps["H"] + column * self.steps["W"]
            values[r, s] = bind(splat(cast(self.w[int64(tap)], accum, 1), lanes))
        line = bind((self._plane(z, t) + a) * self.wide + self.margin + first * lanes)
        for row, s in itertools.product(range(high + p.r - 1), range(p.s)):
            for j in range(wide):
                place = line + row * self.wide + s * columns.dilation + j * lanes
                data = bind(ring[vector(place, lanes)])
                for r in range(max(0, row - high + 1), min(p.r, row + 1)):
                    register = vector(((row - r) * wide + j) * lanes, lanes)
                    T.buffer_store(acc, acc[register] + data * values[r, s], [register])


def _vectors(count: int, lanes: int) -> list[tuple[int, int, int]]:
    """(first, how many, lanes) of vectors that cover so many elements, shorter ones at the end."""
    found, start = [], 0
    while lanes:
        some = (count - start) // lanes
        if some:
            found.append((start, some, lanes))
        start += some * lanes
        lanes //= 2
    return found
