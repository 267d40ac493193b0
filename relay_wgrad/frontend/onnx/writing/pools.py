"""Poolings of one to three dimensions, and the gradients of those of two.

Padding at the end is what the windows reach, so that no rule of a runtime about `ceil_mode` is
asked.  Max pooling's gradient adds to the places that `MaxPool` names, the first of equal maxima;
average pooling's is the transposed convolution with ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ....layouts import to_layout
from ....ops.auxiliary import LOWEST
from ...weights import Array
from .convolutions import Window, dgrad
from .writer import Names, Row, Writer, count, dtype, sizes


@dataclass(frozen=True)
class Pool:
    """One pooling in canonical order: data (N, C, H…), `out` its pixels."""

    data: tuple[int, ...]
    out: tuple[int, ...]
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    all_count: bool  # pixels of the padding too
    layout: str
    canonical: str

    @staticmethod
    def of(call: relax.Call, data: Any, out: Any) -> Pool:
        a = call.attrs
        layout = str(a.layout)
        if str(a.out_layout or layout) != layout:
            raise ValueError(f"out_layout must be layout, got {layout} to {a.out_layout}")
        rank = len(layout) - 2
        canonical = "NC" + "DHW"[3 - rank :]
        if sorted(canonical) != sorted(layout):
            raise ValueError(f"layout must be a permutation of {canonical}, got {layout}")
        taps, strides, dilation = (tuple(map(int, v)) for v in (a.pool_size, a.strides, a.dilation))
        return Pool(
            to_layout(sizes(data), layout, canonical), to_layout(sizes(out), layout, canonical)[2:],
            taps, strides, dilation, tuple(map(int, a.padding))[:rank],
            bool(a.count_include_pad), layout, canonical,
        )  # fmt: skip

    @property
    def size(self) -> tuple[int, ...]:
        return self.data[2:]

    @property
    def after(self) -> list[int]:
        """What windows reach behind the image."""
        return [
            max((p - 1) * s + (k - 1) * d + 1 - h - b, 0)
            for p, s, k, d, h, b in zip(
                self.out, self.strides, self.taps, self.dilation, self.size, self.before,
                strict=True,
            )
        ]  # fmt: skip

    @property
    def plain(self) -> bool:
        """Whether each window has a pixel of the image for sure, and runtimes take the padding."""
        return all(
            max(b, e) < k and d == 1 and (p - 1) * s - b < h
            for b, e, k, d, p, s, h in zip(
                self.before, self.after, self.taps, self.dilation, self.out, self.strides,
                self.size, strict=True,
            )
        )  # fmt: skip

    @property
    def padded(self) -> list[int]:
        """The image with its padding."""
        return [h + b + a for h, b, a in zip(self.size, self.before, self.after, strict=True)]

    def shares(self) -> Array:
        """One over the pixels that each window counts."""
        whole = np.ones(self.out)
        for axis, (h, k, s, d, b) in enumerate(
            zip(self.size, self.taps, self.strides, self.dilation, self.before, strict=True)
        ):
            first = np.arange(self.out[axis])[:, None] * s - b
            at = first + np.arange(k) * d
            inside = np.maximum(((at >= 0) & (at < h)).sum(1), 1)
            number = np.full_like(inside, k) if self.all_count else inside
            whole = whole / number.reshape([-1 if i == axis else 1 for i in range(whole.ndim)])
        return whole

    def pad(self, w: Writer, x: str, fill: str = "") -> str:
        return w.pad(x, [0, 0, *self.before], [0, 0, *self.after], fill)

    def uncovered(self, w: Writer, x: str) -> str:
        """Without the padding."""
        if self.padded == list(self.size):
            return x
        return w.crop(x, self.before, self.size, 2)


def _largest(w: Writer, pool: Pool, x: str, kind: str) -> tuple[str, str, bool]:
    """(the maxima, their places, whether those are in the image with its padding)."""
    pads = [*pool.before, *pool.after]
    if not pool.plain:
        x = pool.pad(w, x, w.constant(np.asarray(LOWEST[kind]), kind))
        pads = [0] * len(pads)
    maxima, places = w.nodes_of(
        "MaxPool", [x], 2, kernel_shape=list(pool.taps), strides=list(pool.strides),
        dilations=list(pool.dilation), pads=pads,
    )  # fmt: skip
    return maxima, places, not pool.plain


def _max(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    pool = Pool.of(call, call.args[0], call)
    x = w.to_layout(names[0], pool.layout, pool.canonical)
    maxima = _largest(w, pool, x, dtype(call))[0]
    w.nodes[-1].output.pop()  # the places
    return w.to_layout(maxima, pool.canonical, pool.layout)


def _max_backward(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    pool = Pool.of(call, call.args[1], call.args[0])
    dy, x = (w.to_layout(n, pool.layout, pool.canonical) for n in names)
    _, places, padded = _largest(w, pool, x, dtype(call))
    shape = [*pool.data[:2], *(pool.padded if padded else pool.size)]
    zeros = w.filled([count(shape)], 0, dtype(call))
    made = w.node(
        "ScatterElements", zeros, w.reshape(places, [-1]), w.reshape(dy, [-1]), reduction="add"
    )
    made = w.reshape(made, shape)
    made = pool.uncovered(w, made) if padded else made
    return w.to_layout(made, pool.canonical, pool.layout)


def _one_channel(pool: Pool, size: tuple[int, ...]) -> list[int]:
    return [pool.data[0] * pool.data[1], 1, *size]


def _average(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    pool, kind = Pool.of(call, call.args[0], call), dtype(call)
    x = w.to_layout(names[0], pool.layout, pool.canonical)
    plain = pool.plain
    pads = [*pool.before, *pool.after] if plain else [0] * (2 * len(pool.taps))
    x = x if plain else pool.pad(w, x)
    made = w.node(
        "AveragePool", x, kernel_shape=list(pool.taps), strides=list(pool.strides), pads=pads,
        count_include_pad=1, **({} if plain else {"dilations": list(pool.dilation)}),
    )  # fmt: skip
    shares = pool.shares() * count(pool.taps)
    if not np.all(shares == 1):
        made = w.node("Mul", made, w.constant(shares, kind))
    return w.to_layout(made, pool.canonical, pool.layout)


def _average_backward(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    pool, kind = Pool.of(call, call.args[1], call.args[0]), dtype(call)
    dy = w.to_layout(names[0], pool.layout, pool.canonical)
    dy = w.node("Mul", dy, w.constant(pool.shares(), kind))
    dy = w.reshape(dy, _one_channel(pool, pool.out))
    ones = w.constant(np.ones((1, 1, *pool.taps)), kind)
    at = Window(pool.strides, [*pool.before, *pool.after], pool.dilation, 1)
    made = dgrad(w, at, dy, ones, pool.out, pool.taps, pool.size)
    return w.to_layout(w.reshape(made, pool.data), pool.canonical, pool.layout)


ROWS: dict[str, Row] = {
    **{f"relax.nn.max_pool{rank}d": _max for rank in (1, 2, 3)},
    **{f"relax.nn.avg_pool{rank}d": _average for rank in (1, 2, 3)},
    "relax.grad.max_pool2d_backward": _max_backward,
    "relax.grad.avg_pool2d_backward": _average_backward,
}
