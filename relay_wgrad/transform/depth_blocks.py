"""Space to depth: where each element of a convolution's data and filter stands in blocks.

Let a convolution have stride s, R taps and `before` elements of padding along an axis:

    y[p] = sum over r < R of x[p s + r - before] w[r]

Write r + front = s r' + d with 0 <= d < s.  Then, with zero wherever an index is outside,

    y[p] = sum over r', d of x'[p + r', d] w'[r', d]      a convolution of stride 1, no padding
    x'[i, d] = x[i s + d - before - front]      w'[r', d] = w[r' s + d - front]

The d of both axes become channels, channel (c bh + dh) bw + dw of the blocks' C bh bw, and zeros
follow up to a multiple of what a library reads at once; where that leaves room, each row of a block
is filled up as well (`width`).  `front` is 0, or what makes before + front a multiple of s where
the last block of taps has room for it, so that blocks begin where rows of memory do.  Where R < s,
d < R are all that is read.  Elements of x that no y has are zero in x'.

An axis may also be whole: 0 <= d < R and r' = 0, whatever s is.  Elements of x then stand in x' as
often as windows have them, and x' has many channels of few taps, which a matrix product takes in
larger pieces.  Where the columns are whole, the taps of a row are side by side in x'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ..layouts import ACTIVATION, KERNEL, to_layout
from ..problem import ConvProblem

IMAGE, FILTER, GRADIENT = "space_to_depth", "filter_to_depth", "filter_from_depth"
"""The kernels' names."""
READ = "nearest_pixel"
"""The first step of an image's."""
FORMS = {"blocks": (False, False), "rows": (False, True), "windows": (True, True)}
"""Which axes are whole: those of rows, of columns."""


@dataclass(frozen=True)
class Axis:
    """One axis: see above; `results` is how many elements y has."""

    taps: int
    stride: int
    before: int
    results: int
    whole: bool = False

    @property
    def block(self) -> int:
        """How many d there are."""
        return self.taps if self.whole else min(self.stride, self.taps)

    @property
    def new_taps(self) -> int:
        """How many r' there are."""
        return 1 if self.whole else -(-self.taps // self.stride)

    @property
    def front(self) -> int:
        """Zeros before the first tap."""
        wanted = -self.before % self.stride
        return wanted if wanted <= self.new_taps * self.block - self.taps else 0

    @property
    def length(self) -> int:
        """How many i there are."""
        return self.results + self.new_taps - 1

    def read(self, size: Any) -> Any:
        """Of x, how many y are made of."""
        return tirx.min(size, (self.results - 1) * self.stride + self.taps - self.before)

    def source(self, i: Any, d: Any) -> Any:
        """Of x, for x'[i, d]."""
        return i * self.stride + d - (self.before + self.front)

    def tap(self, r: Any, d: Any) -> Any:
        """Of w, for w'[r, d]."""
        return r * self.stride + d - self.front

    def place(self, r: Any) -> tuple[Any, Any]:
        """(r', d) of w[r]."""
        if self.new_taps == 1:
            return 0, r + self.front
        return (r + self.front) // self.stride, (r + self.front) % self.stride


@dataclass(frozen=True)
class Blocks:
    """A problem of known sizes, but for N, on blocks."""

    rows: Axis
    columns: Axis
    channels: int
    unit: int  # what the number of new channels is a multiple of

    @staticmethod
    def of(problem: ConvProblem, unit: int, form: str = "blocks") -> Blocks:
        """On blocks, or with whole axes (`FORMS`), but for those of one block."""
        p: Any = problem
        rows, columns = (
            Axis(taps, stride, before, results, whole and taps > stride)
            for taps, stride, before, results, whole in zip(
                (p.r, p.s), p.strides, p.padding[:2], (p.p, p.q), FORMS[form], strict=True
            )
        )
        return Blocks(rows, columns, p.c, unit)

    @property
    def width(self) -> int:
        """Channels of a block's row: a power of two where zeros for it cost no more channels.

        What a thread of the image's kernel writes at once then is one row's.
        """
        block = self.columns.block
        wide = 1 << (block - 1).bit_length()
        return wide if self._channels(wide) == self._channels(block) else block

    @property
    def filled(self) -> int:
        """Channels before the zeros at their end."""
        return self.channels * self.rows.block * self.width

    @property
    def new_channels(self) -> int:
        return self._channels(self.width)

    def _channels(self, width: int) -> int:
        return -(-self.channels * self.rows.block * width // self.unit) * self.unit

    def split(self, channel: Any) -> tuple[Any, Any, Any]:
        """(c, dh, dw) of a new channel; it is zero where dw is not of a block."""
        height, width = self.rows.block, self.width
        return channel // (height * width), channel // width % height, channel % width

    def _has(self, channel: Any, dw: Any) -> tuple[Any, ...]:
        """The conditions for a new channel not to be zero."""
        in_row = (dw < self.columns.block,) if self.width > self.columns.block else ()
        return channel < self.filled, *in_row

    def image(self, data: Any, layout: str) -> Any:
        """x' of x, both in `layout`."""
        n, _, h, w = to_layout(data.shape, layout, ACTIVATION)
        shape = (n, self.new_channels, self.rows.length, self.columns.length)
        top, left = self.rows.read(h), self.columns.read(w)

        def place(index: tuple[Any, ...]) -> tuple[Any, ...]:
            n, channel, i, j = to_layout(index, layout, ACTIVATION)
            c, dh, dw = self.split(channel)
            return self._has(channel, dw), n, c, self.rows.source(i, dh), self.columns.source(j, dw)

        def nearest(*index: Any) -> Any:
            _, n, c, y, x = place(index)
            c, y, x = (_clamped(*at) for at in ((c, self.channels), (y, h), (x, w)))
            return data(*to_layout((n, c, y, x), ACTIVATION, layout))

        def element(*index: Any) -> Any:
            has, _, _, y, x = place(index)
            inside = tirx.all(*_within(y, top), *_within(x, left), *has)
            return tirx.if_then_else(inside, read(*index), tirx.const(0, data.dtype))

        # Two steps, so that a GPU's loads wait for no comparison.
        read = te.compute(to_layout(shape, ACTIVATION, layout), nearest, name=READ)
        return te.compute(to_layout(shape, ACTIVATION, layout), element, name=IMAGE)

    def filter(self, weight: Any, layout: str) -> Any:
        """w' of w, both in `layout`."""
        count, _, height, width = to_layout(weight.shape, layout, KERNEL)
        shape = (count, self.new_channels, self.rows.new_taps, self.columns.new_taps)

        def element(*index: Any) -> Any:
            k, channel, r, s = to_layout(index, layout, KERNEL)
            c, dh, dw = self.split(channel)
            y, x = self.rows.tap(r, dh), self.columns.tap(s, dw)
            inside = tirx.all(*_within(y, height), *_within(x, width), *self._has(channel, dw))
            value = weight(*to_layout((k, c, y, x), KERNEL, layout))
            return tirx.if_then_else(inside, value, tirx.const(0, weight.dtype))

        return te.compute(to_layout(shape, KERNEL, layout), element, name=FILTER)

    def gradient(self, weight: Any, layout: str) -> Any:
        """dw of dw', both in `layout`."""
        count, *_ = to_layout(weight.shape, layout, KERNEL)
        shape = (count, self.channels, self.rows.taps, self.columns.taps)
        height, width = self.rows.block, self.width

        def element(*index: Any) -> Any:
            k, c, r, s = to_layout(index, layout, KERNEL)
            (y, dh), (x, dw) = self.rows.place(r), self.columns.place(s)
            channel = (c * height + dh) * width + dw
            return weight(*to_layout((k, channel, y, x), KERNEL, layout))

        return te.compute(to_layout(shape, KERNEL, layout), element, name=GRADIENT)


def _within(index: Any, size: Any) -> tuple[Any, Any]:
    return index >= 0, index < size


def _clamped(index: Any, size: Any) -> Any:
    return tirx.max(tirx.min(index, size - 1), 0)
