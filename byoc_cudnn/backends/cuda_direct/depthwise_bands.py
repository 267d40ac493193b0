"""Depthwise convolutions on tensor cores: which kernels there are, and their times.

The device's code is `templates/bands_*.h`; its `Bands` has a kernel's constants.  Of a channel, a
row of the filter as a banded matrix gives 8 results beside each other from 16 columns of the image.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...decision import YES, Decision, no
from . import launch_time, tensor_cores
from .family import Family, Numbers, ceil_div

MOST_TAPS = 7  # along an axis
_ITEMS = 16  # of a block: rows of a product
_GATE = 16  # bytes
_CHANNELS = (48, 32, 16, 8)  # of a block, four for each of its warps
_LONG = 12 << 10  # bytes of a row of a block's items
# Fitted to an H200's times (`gpu_depthwise_*h200.json` of the benchmarks' results).
_STEP, _ROW, _WEIGHT = 17.4, 10.8, 64.7  # cycles of a warp's step, of each row of filters; of wgrad
_STRIDED = 4.24  # times as many with a stride
_BEGIN, _TAP = 3330.0, 231.0  # cycles of a block beside its steps, and of each tap's sums
_BANDWIDTH = {ConvKind.FPROP: 3.77e6, ConvKind.DGRAD: 3.77e6, ConvKind.WGRAD: 4.09e6}
_SECTOR, _WASTED = 64, 0.4  # bytes that memory has together, and how much of others' is moved


class Tiles(ABC):
    """A kernel of either depthwise family on tensor cores, by its numbers."""

    channels: int
    across: int
    fit: int

    @property
    def threads(self) -> int:
        return 8 * self.channels

    @abstractmethod
    def shared(self, kind: ConvKind) -> int:
        """Bytes of a block."""

    @abstractmethod
    def registers(self, kind: ConvKind) -> int:
        """Of a thread, with which nvcc spills nothing, or next to nothing."""

    def resident(self, kind: ConvKind, shared: int) -> int:
        """Blocks that run at once on a multiprocessor; 0 if one has more than so many bytes."""
        size = self.shared(kind)
        if size > shared:
            return 0
        by_registers = launch_time.REGISTERS // (self.threads * self.registers(kind))
        return min(by_registers, launch_time.SHARED // (size + 1024), 8)


@dataclass(frozen=True)
class Bands(Tiles):
    """A kernel's numbers, in the order of the template's.

    channels : of a block.  r, s, stride, top, left : taps, and how they lie.
    across, images : of a block, times 8 columns.
    ahead : rows in shared memory.  fit : blocks that run at once on a multiprocessor.
    """

    channels: int
    r: int
    s: int
    stride: int
    top: int
    left: int
    across: int
    images: int
    ahead: int
    fit: int

    @property
    def under_way(self) -> int:
        """Rows of results that a row of the image reaches."""
        return ceil_div(self.r, self.stride)

    def step(self, kind: ConvKind) -> float:
        """Cycles of a multiprocessor for a warp's step."""
        if kind is ConvKind.WGRAD:
            return _WEIGHT
        return image_step(self.r) * (_STRIDED if self.stride > 1 else 1.0)

    @property
    def pitch(self) -> int:
        """Bytes of a pixel in shared memory."""
        return 16 * (self.channels // 8 | 1)

    def shared(self, kind: ConvKind) -> int:
        eight, one = 8 * self.stride * self.pitch, self.stride == 1
        eight += 64 if one else 16
        odd = self.across % 2 if one else 0
        row = self.images * ((self.across + 1) * eight + 64 * odd)
        if kind is ConvKind.WGRAD:
            row += self.images * (self.across * eight + 64 * (1 - odd))
            return max(self.ahead * row, 512 * self.channels) + _GATE
        results = 2 * _ITEMS * (8 * self.pitch + 16)
        filters = self.channels * self.r * self.s * 2
        return filters + self.ahead * self.stride * row + results + _GATE

    def registers(self, kind: ConvKind) -> int:
        if self.r <= 3:  # 128 were enough, and slower
            return 168
        if self.r > 5 or self.stride > 1:
            return 255
        return 224 if kind is ConvKind.WGRAD else 168


def accepts(problem: ConvProblem, epilogue: str) -> Decision:
    p = problem
    if p.groups != p.c or p.k != p.c:
        return no(f"groups={p.groups} of C={p.c} and K={p.k}: not one filter for each channel")
    if not (decision := tensor_cores.accepts(p, "depthwise ones on tensor cores")):
        return decision
    if max(p.strides) > (2 if p.kind is ConvKind.FPROP else 1) or max(p.dilation) > 1:
        return no(f"strides={p.strides} dilation={p.dilation}: not on tensor cores")
    if max(p.r, p.s) > MOST_TAPS or p.c % 8:
        return no(f"a kernel of {p.r}x{p.s} of C={p.c}: up to {MOST_TAPS} taps, channels by 8")
    return YES


def extent(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of the result."""
    p = problem
    return (p.h, p.w) if p.kind is ConvKind.DGRAD else (p.p, p.q)


def tile(problem: ConvProblem) -> tuple[int, int]:
    """Times 8 columns, and images, of a block: up to 16 items, of which few are idle."""
    columns, halo = extent(problem)[1], problem.s - 1
    best, most = (1, 1), 0.0
    for across in range(min(ceil_div(columns, 8), _ITEMS), 0, -1):
        images = max(1, min(problem.n, _ITEMS // across))
        used = images * columns / ceil_div(columns, 8 * across)
        score = used * (8 * across / (8 * across + halo)) ** 0.5  # columns that are read twice
        if score > 1.001 * most:
            most, best = score, (across, images)
    return best


def ahead_of(problem: ConvProblem, channels: int) -> tuple[int, ...]:
    """Rows in shared memory: fewer where copying them takes long, with which a block begins."""
    p, (across, images) = problem, tile(problem)
    row = images * (8 * across + p.s - 1) * channels * 2
    return (4,) if p.kind is ConvKind.WGRAD or row > _LONG else (6, 4)


def image_step(rows: int) -> float:
    """Cycles of a multiprocessor for a warp's step that has rows of a filter."""
    return _STEP + _ROW * rows


def tensor_bytes(problem: ConvProblem, z: Tiles) -> float:
    """Bytes, with columns that two tiles read and what lies beside a block's channels."""
    p, columns = problem, 8 * z.across
    image = p.n * p.c * (p.p * p.q if p.kind is ConvKind.DGRAD else p.h * p.w)
    halo = max(0, p.s - p.strides[1]) / (columns * p.strides[1])
    twice = halo if columns < extent(p)[1] else 0.0
    size = DTYPE_BYTES[p.data_dtype]
    wasted = _SECTOR - math.gcd(_SECTOR, size * z.channels) if z.channels < p.c else 0
    return (p.bytes + image * size * twice) * (1 + _WASTED * wasted / (size * z.channels))


def took(
    problem: ConvProblem, z: Tiles, steps: float, blocks: int, step: float, more: float = 0.0
) -> float:
    """Microseconds: whole rounds of blocks, and memory, which hide each other in part.

    step, more : cycles of a warp's step, and of a block beside its steps and what all begin with.
    """
    p, busy = problem, 0.0
    begin = _BEGIN + more + _TAP * p.r * p.s * (p.kind is ConvKind.WGRAD)
    full, left = divmod(ceil_div(blocks, launch_time.MULTIPROCESSORS), z.fit)
    for together, times in ((z.fit, full), (left, 1 if left else 0)):
        busy += times * (steps * together * z.channels / 4 * step + begin)
    memory = tensor_bytes(p, z) / _BANDWIDTH[p.kind]
    return tensor_cores.us(p, math.hypot(busy / launch_time.CLOCK, memory))


def _shapes(problem: ConvProblem, shared: int) -> Iterator[Bands]:
    p, (across, images), (top, left) = problem, tile(problem), problem.padding[:2]
    for channels in _CHANNELS:
        if channels - 8 >= p.c:
            continue
        for ahead in ahead_of(p, channels) if p.strides[0] == 1 else (4, 3):
            z = Bands(channels, p.r, p.s, p.strides[0], top, left, across, images, ahead, 1)
            if fit := z.resident(p.kind, shared):
                yield replace(z, fit=fit)


def _us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    """Expected."""
    p, z = problem, Bands(*numbers)
    rows, columns = extent(p)
    beside = ceil_div(p.n, z.images) * ceil_div(p.c, z.channels) * ceil_div(columns, 8 * z.across)
    least, steps, blocks = 0, 0, 0
    for cut in range(1, rows + 1):  # `band_rows` of bands_rows.h
        chunk = ceil_div(rows, cut)
        many = beside * ceil_div(rows, chunk)
        cost = ceil_div(many, launch_time.MULTIPROCESSORS) * (chunk + z.under_way - 1 + 3)
        if cut == 1 or cost < least:
            least, steps, blocks = cost, chunk + z.under_way - 1, many
    return took(p, z, steps, blocks, z.step(p.kind))


FAMILY = Family(
    "depthwise_bands", (*tensor_cores.TEMPLATES, "bands_rows.h", "bands_image.h", "bands_weight.h"),
    accepts, tensor_cores.candidates(_shapes), _us, tensor_cores.alignment, tensor_cores.OLDEST,
)  # fmt: skip
