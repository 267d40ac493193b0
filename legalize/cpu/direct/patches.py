"""fprop and dgrad of windows that lie side by side, with channels outside: a product of pixels.

Where strides are the taps, each element of the data meets one tap, so that elements are numbers of
a channel, a tap, and a pixel of the gradient:

    y[n, k, z, p, q] = sum over c, t, r, s of w[k, (c, t, r, s)] x[n, (c, t, r, s), (z, p, q)]
    with x[n, (c, t, r, s), (z, p, q)] = x[n, c, z*T + t, p*R + r, q*S + s]

That is the product of `outside` with T*R*S as many channels, whose weights are the caller's as they
lie.  Only the data are not rows of pixels: taps of a row are parted where they are copied, and are
brought together again where they are written, by shuffles of vectors.  Channels are not transposed,
and a tile's results are runs of memory: R rows of the data for each row of pixels.  The next task's
data are asked for as `outside` does it, of fprop a run of rows for each channel and tap in depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from ..emitters.loops import Expr, bind, ceildiv, local, serial, vector, when, zero
from ..emitters.memory import Memory
from ..machine import Machine
from . import outside

_TOGETHER = (1, 2, 4)  # taps of a row that are parted by shuffles, and that divide a tile's rows


def as_product(problem: ConvProblem) -> ConvProblem | None:
    """The 1x1 problem of the same numbers; None for other problems than such ones."""
    p = problem
    letters = "DHW"[-p.rank :]
    side_by_side = all(
        taps == stride and (taps == 1 or dilation == 1) and size == taps * count
        for taps, stride, dilation, size, count in zip(
            p.taps, p.strides, p.dilation,
            p.canonical_shape("data")[2:], p.canonical_shape("grad")[2:], strict=True,
        )
    )  # fmt: skip
    layouts = (p.data_layout, p.grad_layout, p.kernel_layout)
    plain = layouts == (f"NC{letters}", f"NC{letters}", f"OI{letters}")
    if not side_by_side or not plain or any(p.padding) or p.groups > 1 or p.s not in _TOGETHER:
        return None
    *depth, rows, columns = p.canonical_shape("grad")[2:]
    return ConvProblem(
        p.kind, p.n, p.c * math.prod(p.taps), math.prod(depth) * rows, columns, p.k, 1, 1,
        data_dtype=p.data_dtype, weight_dtype=p.weight_dtype, grad_dtype=p.grad_dtype,
    )  # fmt: skip


def pays(problem: ConvProblem, m: Machine) -> bool:
    """Whether fprop or dgrad is such a product, in tiles that are rows of pixels or parts of one,
    and less work than with channels inside."""
    if math.prod(problem.taps) == 1:
        return False
    product = as_product(problem)
    return product is not None and outside.pays(product, m) and _vectors(product, m) > 0


def _vectors(product: ConvProblem, m: Machine) -> int:
    """Vectors of a tile, as many as can be; 0 where no tile is some rows or a part of one."""
    lanes = m.lanes(product.accum_dtype)
    pixels = product.h * product.w
    for vectors in range(min(outside.VECTORS, ceildiv(pixels, lanes)), 0, -1):
        if vectors * lanes % product.w == 0 or product.w % (vectors * lanes) == 0:
            return int(vectors)
    return 0


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel."""
    product = as_product(problem)
    assert product is not None
    _Kernel(problem, product, m, memory.of(product)).write()


class _Kernel(outside.Product):
    def __init__(
        self, problem: ConvProblem, product: ConvProblem, m: Machine, memory: Memory
    ) -> None:
        super().__init__(product, m, memory, _vectors(product, m))
        self.taps = (1, *problem.taps)[-3:]
        *_, self.p, self.q = problem.canonical_shape("grad")
        *_, height, width = problem.canonical_shape("data")
        depth = math.prod(problem.canonical_shape("data")[2:-2])
        # Of the data: an image's step, and those of a channel, a plane and a row.
        self.steps = (
            problem.c * depth * height * width,
            depth * height * width,
            height * width,
            width,
        )
        self.is_fprop = problem.kind is ConvKind.FPROP
        self.is_scattered = not self.is_fprop
        if self.is_fprop:
            self.runs = problem.c * self.taps[0]

    def place(self, n: Expr, tile: Expr) -> Expr:
        """Of fprop the data's row that a tile's first row of pixels meets."""
        if not self.is_fprop:
            return super().place(n, tile)
        return n * self.steps[0] + self._row(tile, 0)

    def run(self, number: Expr) -> Expr:
        """Of fprop a channel's planes that a tap in depth meets."""
        if not self.is_fprop:
            return super().run(number)
        deep, (_, channel, plane, _) = self.taps[0], self.steps
        return number // deep * channel + number % deep * plane

    def length(self, tiles: int) -> int:
        """Of fprop the data's rows that rows of pixels meet; beyond a plane's those of the next."""
        if not self.is_fprop:
            return super().length(tiles)
        return int(ceildiv(tiles * self.width, self.q)) * self.taps[1] * self.steps[3]

    def _row(self, tile: Expr, i: Expr) -> Expr:
        """Where in a channel the first element begins that row `i` of a tile's pixels meets."""
        _, _, plane, line = self.steps
        parts = max(1, self.q // self.width)
        row = tile * (self.width // self.q) + i if parts == 1 else tile // parts
        row = bind(row)
        first = tile % parts * (self.width * self.taps[2]) if parts > 1 else 0
        return bind(
            row // self.p * (self.taps[0] * plane) + row % self.p * (self.taps[1] * line) + first
        )

    def _chunks(self) -> list[tuple[int, int]]:
        """(first, count) of vectors that a row of a tile's pixels is cut into."""
        length, at, found = min(self.q, self.width), 0, []
        while at < length:
            count = min(self.lanes, 1 << ((length - at).bit_length() - 1))
            found.append((at, count))
            at += count
        return found

    def _rows_of(self, tile: outside.PixelTile) -> int:
        return max(1, ((tile.vectors - 1) * self.lanes + tile.last) // self.q)

    def copy(self, copied: Expr, n: Expr, first: Expr, count: Expr) -> None:
        """As the product's, of fprop's data."""
        if not self.is_fprop:
            super().copy(copied, n, first, count)
            return
        image, channel, plane, line = self.steps
        deep, high, wide = self.taps
        with serial(self.reduced // math.prod(self.taps)) as c, serial(count) as t:
            for tile in self._tiles(first + t):
                with when(tile.there), serial(self._rows_of(tile)) as i:
                    row = bind(n * image + c * channel + self._row(bind(first + t), i))
                    with serial(deep) as a, serial(high) as b:
                        source = bind(row + a * plane + b * line)
                        taps = ((c * deep + a) * high + b) * wide
                        to = bind((t * self.reduced + taps) * self.width + i * self.q)
                        for start, some in self._chunks():
                            parts = _parted(self.x, source + start * wide, wide, some)
                            for s, part in enumerate(parts):
                                place = vector(to + s * self.width + start, some)
                                T.buffer_store(copied, part, [place])
                if tile.last < self.lanes:
                    with when(tile.there), serial(math.prod(self.taps)) as tap:
                        at = (t * self.reduced + c * math.prod(self.taps) + tap) * self.width
                        at = bind(at + (tile.vectors - 1) * self.lanes)
                        with serial(self.lanes, tile.last) as lane:
                            T.buffer_store(copied, zero(self.memory.accum), [at + lane])

    def store(
        self, acc: Expr, tile: outside.PixelTile, rows: int, where: tuple[Expr, ...], target: Expr
    ) -> None:
        """As the product's, of dgrad's result."""
        if self.is_fprop:
            super().store(acc, tile, rows, where, target)
            return
        n, number, block = where
        image, channel, plane, line = self.steps
        deep, high, wide = self.taps
        size, lanes = tile.vectors * self.lanes, self.lanes
        # Not read where the sums wait, which then were no registers.
        sums = local("sums", rows * size, self.memory.accum)
        for i in range(rows * tile.vectors):
            place = vector(i * lanes, lanes)
            T.buffer_store(sums, acc[place], [place])
        places = [self._row(number, i) for i in range(self._rows_of(tile))]
        for group in range(rows // wide):
            taps = bind(block * (self.rows // wide) + group)
            a, b, c = taps // high % deep, taps % high, taps // (high * deep)
            begin = bind(n * image + c * channel + a * plane + b * line)
            for i, row in enumerate(places):
                for start, some in self._chunks():
                    parts = [
                        sums[vector((group * wide + s) * size + i * self.q + start, some)]
                        for s in range(wide)
                    ]
                    _put_together(self.y, parts, begin + row + start * wide, some)


def _parted(x: Expr, begin: Expr, wide: int, count: int) -> list[Expr]:
    """Of pixels' elements, which follow each other, those of each tap as a vector."""
    if count == 1:
        return [x[vector(begin + s, 1)] for s in range(wide)]
    whole = bind(x[vector(begin, wide * count)])
    if wide == 1:
        return [whole]
    taps = [range(s, wide * count, wide) for s in range(wide)]
    return [tirx.Shuffle([whole], list(tap)) for tap in taps]


def _put_together(y: Expr, parts: Sequence[Expr], begin: Expr, count: int) -> None:
    """Writes the vectors of taps as elements of pixels."""
    wide = len(parts)
    if count == 1 or wide == 1:
        for s, part in enumerate(parts):
            T.buffer_store(y, part, [vector(begin + s, count)])
        return
    order = [s * count + j for j in range(count) for s in range(wide)]
    T.buffer_store(y, tirx.Shuffle(list(parts), order), [vector(begin, wide * count)])
