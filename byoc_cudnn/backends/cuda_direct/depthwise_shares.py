"""Depthwise convolutions on tensor cores, in equal shares: the kernels, and their times.

The device's code is `templates/shares_*.h`; its `Shares` has a kernel's constants.  Products are
those of `depthwise_bands.py`, with a stride of 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import Decision, no
from . import depthwise_bands, launch_time, tensor_cores
from .family import Family, Numbers, ceil_div

_CHANNELS = (32, 24, 16)  # of a block, four for each of its warps
# Fitted as those of `depthwise_bands.py`, whose other constants they share.
_WEIGHT = 55.7  # cycles of a weight's gradient's step
_NEXT = 2670.0  # cycles of a tile after the first
_LIGHT = 0.39  # of a step: a row of a tile that is not there


@dataclass(frozen=True)
class Shares(depthwise_bands.Tiles):
    """A kernel's numbers, in the order of the template's; they mean what those of `Bands` do."""

    channels: int
    r: int
    s: int
    top: int
    left: int
    across: int
    images: int
    ahead: int
    fit: int

    @property
    def warps(self) -> int:
        return self.channels // 4

    def row(self, kind: ConvKind) -> int:
        """Bytes of a row ahead: of a weight's gradient also the gradient's."""
        each = self._grouped(self.images * (96 * (self.across + 1) + 32))
        if kind is ConvKind.WGRAD:
            each += self._grouped(self.images * 96 * self.across)
        return self.warps * each

    def _grouped(self, size: int) -> int:
        return size + ((16 if self.warps > 4 else 32 if self.warps > 2 else 64) - size) % 128

    def shared(self, kind: ConvKind) -> int:
        ring = self.ahead * self.row(kind)
        if kind is ConvKind.WGRAD:
            return max(ring, 2048 * self.warps) + 16
        results = 2 * 16 * (8 * 16 * (self.channels // 8 | 1) + 16)
        return self.channels * self.r * self.s * 2 + ring + results + 16

    def registers(self, kind: ConvKind) -> int:
        if self.r > 3:
            return 255
        return 208 if kind is ConvKind.WGRAD else 168


def _accepts(problem: ConvProblem, epilogue: str) -> Decision:
    p = problem
    if p.strides != (1, 1):
        return no(f"strides={p.strides}: rows are in equal shares with strides of 1")
    if max(p.padding[0], p.padding[2]) >= p.r:
        return no(f"padding={p.padding} of {p.r} rows: all results meet a row of the image here")
    return depthwise_bands.accepts(problem, epilogue)


def _shapes(problem: ConvProblem, shared: int) -> Iterator[Shares]:
    p, (across, images), (top, left) = problem, depthwise_bands.tile(problem), problem.padding[:2]
    for channels in _CHANNELS:
        if channels > 16 and channels - 8 >= p.c:
            continue
        for ahead in depthwise_bands.ahead_of(p, channels):
            z = Shares(channels, p.r, p.s, top, left, across, images, ahead, 1)
            if fit := z.resident(p.kind, shared):
                yield replace(z, fit=fit)


def share(tiles: int, rows: int, slabs: int, fit: int, ramp: int, light: int) -> int:
    """`share_of` of shares_rows.h."""
    most = max(1, launch_time.MULTIPROCESSORS * fit // slabs)
    whole, part = ceil_div(tiles, most), ceil_div(tiles * rows, most)
    one = 2 * whole * rows + whole * light
    return whole * rows if one <= 2 * (part + ramp) + part // rows * light else part


def _us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    """Expected."""
    p, z = problem, Shares(*numbers)
    rows, columns = depthwise_bands.extent(p)
    slabs = ceil_div(p.c, z.channels)
    tiles = ceil_div(p.n, z.images) * ceil_div(columns, 8 * z.across)
    light = z.r - 1 - z.top if p.kind is ConvKind.DGRAD else z.top
    of = share(tiles, rows, slabs, z.fit, z.r - 1, light)
    parts = ceil_div(of, rows)
    steps = of + (z.r - 1 if of % rows else 0) + _LIGHT * light * parts
    step = _WEIGHT if p.kind is ConvKind.WGRAD else depthwise_bands.image_step(z.r)
    blocks = slabs * ceil_div(tiles * rows, of)
    return depthwise_bands.took(p, z, steps, blocks, step, _NEXT * (parts - 1))


FAMILY = Family(
    "depthwise_shares",
    (*tensor_cores.TEMPLATES, "bands_rows.h", "bands_image.h", "bands_weight.h", "shares_rows.h",
     "shares_image.h", "shares_weight.h"),
    _accepts, tensor_cores.candidates(_shapes), _us, tensor_cores.alignment, tensor_cores.OLDEST,
)  # fmt: skip
