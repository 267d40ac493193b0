"""Dense convolutions of few channels on tensor cores: what they take, their tiles.

The device's code is `templates/narrow_*.h`; its `Narrow` has a kernel's constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import YES, Decision, no
from ..assumed_sizes import sized
from . import launch_time, tensor_cores
from .family import Family, Numbers, ceil_div

MOST, MOST_TOGETHER, MOST_TAPS = 128, 64 * 64, 7  # channels; times filters; along an axis
_WARPS, _HIGH, _COLUMNS = (4, 8, 16), (2, 4, 8), (16, 32, 64)  # of a block; rows of a warp; tiles
_SUMS = {ConvKind.FPROP: 96, ConvKind.DGRAD: 96, ConvKind.WGRAD: 112}  # registers of a thread's
_PRODUCT = 16 * 8 * 16 / (0.62 * 2048)  # cycles of a multiprocessor, as `mma.sync` reaches
_LOAD = 4.0  # cycles of four matrices from shared memory
_ALONE, _TOGETHER = 2.0, 0.1
_TURNED, _ADDED = 0.25, 0.3  # microseconds of a thread's 8 filters; of another warp's sums
_TILE = 300.0  # cycles before and after a tile's products


@dataclass(frozen=True)
class Narrow:
    """The constants of `templates/narrow_rows.h`, in its order."""

    c: int
    k: int
    r: int
    s: int
    top: int
    left: int
    rows: int
    columns: int
    ways: int
    warps: int

    def tile(self, channels: int, halo: bool) -> int:
        """Bytes of a tile of a tensor."""
        rows = self.rows + (self.r - 1) * halo
        return rows * (self.columns + (self.s - 1) * halo) * (channels // 8 | 1) * 16

    def shared(self, kind: ConvKind) -> int:
        """What `NarrowImage::BYTES` or `NarrowWeight::BYTES` is."""
        if kind is ConvKind.WGRAD:
            added = 32 * self.warps // self.apart * self.sums(kind) * 4 if self.apart > 1 else 0
            return max(2 * (self.tile(self.c, True) + self.tile(self.k, False)), added)
        ins, outs = (self.c, self.k) if kind is ConvKind.FPROP else (self.k, self.c)
        return self.r * self.s * outs * (ins // 8 | 1) * 16 + 2 * self.tile(ins, True)

    @property
    def apart(self) -> int:
        """Warps that have the same sums of a gradient, of other rows of a tile."""
        return self.warps // (ceil_div(self.k, 16) * self.ways)

    def blocks(self, kind: ConvKind) -> int:
        """Of 8 columns of products, a warp's."""
        return (self.k if kind is ConvKind.FPROP else self.c) // 8 // self.ways

    def high(self, kind: ConvKind) -> int:
        """Rows of a tile, a warp's."""
        if kind is ConvKind.WGRAD:
            return self.rows // self.apart
        return self.rows * self.ways * (self.columns // 16) // self.warps

    def sums(self, kind: ConvKind) -> int:
        """Registers of a thread's."""
        each = self.r * self.s if kind is ConvKind.WGRAD else self.high(kind)
        return each * self.blocks(kind) * 4

    def resident(self, kind: ConvKind) -> int:
        """Blocks of a multiprocessor, as `resident_of` counts them."""
        more = 4 if kind is ConvKind.WGRAD else 2 * self.blocks(kind)
        registers = self.sums(kind) + self.r * more + 40
        by_registers = launch_time.REGISTERS // (32 * self.warps * registers)
        return max(1, min(4, by_registers, launch_time.SHARED // (self.shared(kind) + 1024)))


def _accepts(problem: ConvProblem, epilogue: str) -> Decision:
    p, what = problem, "dense ones of few channels"
    if not (decision := tensor_cores.accepts_dense(p, what)):
        return decision
    if set(p.strides) != {1} or set(p.dilation) != {1}:
        return no(f"strides={p.strides} dilation={p.dilation}: {what} have 1 and 1")
    if p.c % 8 or p.k % 8:
        return no(f"C={p.c} and K={p.k}: {what} have channels and filters by 8")
    if max(p.c, p.k) > MOST or p.c * p.k > MOST_TOGETHER:
        return no(f"C={p.c} and K={p.k}: {what} have up to {MOST}, together {MOST_TOGETHER}")
    if max(p.taps) > MOST_TAPS:
        return no(f"a kernel of {p.r}x{p.s}: there are up to {MOST_TAPS} taps along an axis")
    if next(shapes(sized(p), min(tensor_cores.SHARED.values())), None) is None:
        return no(f"C={p.c} and K={p.k}, {p.r}x{p.s}: no tile fits into a multiprocessor")
    return YES


def shapes(problem: ConvProblem, shared: int) -> Iterator[Narrow]:
    """Shapes of a kernel for a problem that fit into some bytes."""
    p, kind = problem, problem.kind
    blocks = (p.k if kind is ConvKind.FPROP else p.c) // 8
    top, left = p.padding[:2]
    for ways in (ways for ways in range(1, blocks + 1) if blocks % ways == 0):
        for most, high, columns in itertools.product(_WARPS, _HIGH, _COLUMNS):
            # Warps beside each other; what is left of them have other rows.
            beside = ways * (ceil_div(p.k, 16) if kind is ConvKind.WGRAD else columns // 16)
            down = most // beside or (kind is ConvKind.WGRAD)
            warps = beside * down
            if warps > max(_WARPS) or (kind is not ConvKind.WGRAD and warps != most):
                continue
            found = Narrow(p.c, p.k, p.r, p.s, top, left, high * down, columns, ways, warps)
            if found.sums(kind) <= _SUMS[kind] and found.shared(kind) <= shared:
                yield found


def _us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    """Expected: products, what passes through shared memory, and memory with what is read twice."""
    p, z, kind = problem, Narrow(*numbers), problem.kind
    rows, columns = (p.h, p.w) if kind is ConvKind.DGRAD else (p.p, p.q)
    tiles = p.n * ceil_div(rows, z.rows) * ceil_div(columns, z.columns)
    high, blocks = z.high(kind), z.blocks(kind)
    if kind is ConvKind.WGRAD:
        steps, lines = z.columns // 16, blocks * z.s
        products = steps * lines * z.r * high
        loads = steps * (high + (high + z.r - 1) * ceil_div(lines, 2))
        copied = z.tile(p.c, True) + z.tile(p.k, False)
    else:
        ins = p.c if kind is ConvKind.FPROP else p.k
        steps = z.s * ceil_div(ins, 16)
        products = steps * z.r * high * blocks
        loads = steps * (z.r * ceil_div(blocks, 2) + high + z.r - 1)
        copied = z.tile(ins, True)
    resident = z.resident(kind)
    busy = z.warps * (products * _PRODUCT + loads * _LOAD) + copied / 64 + _TILE / resident**0.5
    blocks_at_once = launch_time.MULTIPROCESSORS * resident
    filters = p.k * p.c * p.r * p.s / 8 / (32 * z.warps) if kind is ConvKind.DGRAD else 0.0
    # The first tile's copies and the last one's results have nothing to hide behind.
    begin = 1.5 * copied * resident * launch_time.MULTIPROCESSORS / launch_time.BANDWIDTH
    begin += _TURNED * filters
    alone = 1 + _ALONE / (resident * z.warps) + _TOGETHER * (z.warps > 8)
    cycles = ceil_div(tiles, blocks_at_once) * resident * busy * alone
    again = tiles * copied * 0.15
    memory = (p.bytes + max(0.0, again - p.bytes / 4)) / launch_time.BANDWIDTH
    both = launch_time.norm(2.0, cycles / launch_time.CLOCK, memory)
    if kind is ConvKind.WGRAD:
        parts = min(tiles, launch_time.MULTIPROCESSORS * resident)
        both += parts * p.k * p.c * p.r * p.s * 4 / 2.0e6 + _ADDED * (z.apart - 1)
    return tensor_cores.us(p, both + begin)


FAMILY = Family(
    "narrow", (*tensor_cores.TEMPLATES, "narrow_rows.h", "narrow_image.h", "narrow_weight.h"),
    _accepts, tensor_cores.candidates(shapes), _us, tensor_cores.alignment, tensor_cores.OLDEST,
)  # fmt: skip
