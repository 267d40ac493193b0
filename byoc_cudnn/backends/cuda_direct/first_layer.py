"""First layers, of few channels, on tensor cores: what they take, their tiles, their times.

The device's code is `templates/first_*.h`; its `First` has a kernel's constants.  Terms of a
product are pairs of elements of rows of the image, which lie in shared memory as in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import YES, Decision, no
from ..assumed_sizes import sized
from . import launch_time, tensor_cores
from .family import Family, Numbers, ceil_div

MOST_CHANNELS, MOST_TAPS, MOST_STRIDE = 4, 16, 16  # taps along an axis
_SUMS = 160  # registers of a thread's sums, at most
_REGISTERS = 250  # of a thread, at most
_UNITS = 16  # times 8 columns of a phase, of a tile
_WARPS = 8  # of a block, about
_SETS = 4  # of a warp's sums that are considered
# Fitted to an H200's times.  Cycles of a multiprocessor that is full: of 16 bytes that 32 threads
# copy, beside a tile's work, and of a block's beginning; so many times as long takes a warp alone.
_COPY = {ConvKind.FPROP: 18.0, ConvKind.WGRAD: 14.0}
_ALONE = {ConvKind.FPROP: 8.8, ConvKind.WGRAD: 7.6}
_TILE = {ConvKind.FPROP: 125.0, ConvKind.WGRAD: 1160.0}
_BEGIN = {ConvKind.FPROP: 8000.0, ConvKind.WGRAD: 3900.0}
_AGAIN = {ConvKind.FPROP: 0.46, ConvKind.WGRAD: 1.0}  # of the bytes of tiles, from the cache
_POWER = {ConvKind.FPROP: 3.3, ConvKind.WGRAD: 4.2}  # of a norm: how well memory and the rest hide
_NARROW = {8: 0.0, 4: 3.0, 2: 3.0, 1: 11.0}  # times as much for copies of less: not measured
_TOGETHER = 8.0  # of a norm: blocks side by side, and one alone
_PARTS, _PARTS_BANDWIDTH = 264, 2.0e6  # of a weight's gradient; bytes per microsecond, out and in


@dataclass(frozen=True)
class First:
    """The constants of `templates/first_rows.h`, in its order."""

    c: int
    k: int
    r: int
    s: int
    stride: int
    top: int
    left: int
    rows: int
    units: int
    mt: int
    nt: int
    warps: int
    stages: int
    taps: int = 1  # in depth
    front: int = 0

    @property
    def phases(self) -> int:
        """Of columns: two where a step of a pixel is an odd number of elements."""
        return self.stride * self.c % 2 + 1

    @property
    def pairs(self) -> int:
        """Of elements, of a row of taps."""
        return ceil_div(self.s * self.c + (self.phases > 1 or self.left * self.c % 2 == 1), 2)

    @property
    def blocks(self) -> int:
        """Of 16 terms."""
        return ceil_div(self.taps * self.r * self.pairs, 8)

    @property
    def columns(self) -> int:
        return 8 * self.phases * self.units

    @property
    def tile(self) -> int:
        """Bytes of the image's rows."""
        margin = -self.left * self.c % 8
        elements = margin + (self.columns - 1) * self.stride * self.c + 2 * self.pairs
        rows = self.taps * ((self.rows - 1) * self.stride + self.r)
        return rows * ceil_div(elements, 8) * 16

    @property
    def groups(self) -> int:
        """Of 32 filters."""
        return ceil_div(self.k, 32)

    def filters(self) -> int:
        """Bytes of the filters in shared memory."""
        return self.phases * self.groups * 32 * (2 * self.blocks + 1) * 16

    def apart(self) -> int:
        """Warps of a gradient that have different sums."""
        return self.phases * ceil_div(self.blocks, self.mt) * ceil_div(self.k // 8, self.nt)

    def shared(self, kind: ConvKind) -> int:
        """What `FirstImage::BYTES` or `FirstWeight::BYTES` is."""
        if kind is not ConvKind.WGRAD:
            return self.filters() + self.stages * self.tile
        grad = self.rows * self.columns * (self.k // 8 | 1) * 16
        added = self.warps // self.apart() // 2 * self.apart() * self.mt * self.nt * 512
        return max(self.stages * (self.tile + grad), added)

    def registers(self, kind: ConvKind) -> int:
        """Of a thread, about: what the templates make of it."""
        if kind is ConvKind.WGRAD:
            return 56 + self.mt * self.nt * 4 + 2 * self.nt + 5 * self.mt
        return 48 + self.mt * (self.nt * 16 + 8)

    def block_registers(self, kind: ConvKind) -> int:
        return 128 * ceil_div(self.warps, 4) * self.registers(kind)

    def resident(self, kind: ConvKind) -> int:
        """Blocks that run at once on a multiprocessor."""
        by_registers = launch_time.REGISTERS // self.block_registers(kind)
        return max(1, min(4, launch_time.SHARED // (self.shared(kind) + 1024), by_registers))


def _accepts(problem: ConvProblem, epilogue: str) -> Decision:
    p = problem
    if p.c > MOST_CHANNELS or p.groups != 1:
        return no(f"C={p.c} of {p.groups} groups: first layers have up to {MOST_CHANNELS} channels")
    if p.kind is ConvKind.DGRAD:
        return no(f"C={p.c}: there is no kernel for the gradient of an image")
    if not (decision := tensor_cores.accepts(p, "first layers")):
        return decision
    if p.k % 8:
        return no(f"K={p.k}: filters of first layers do not come by 8")
    if max(p.dilation) > 1:
        return no(f"dilation={p.dilation}: first layers have none")
    if p.rank == 3 and p.t == 1:
        return no(f"one tap in depth, strides={p.strides}, padding={p.padding}: planes between")
    if max(p.taps) > MOST_TAPS or p.strides[0] > MOST_STRIDE:
        size = "x".join(map(str, p.taps))
        return no(
            f"a kernel of {size}, strides={p.strides}: there are first layers of up to"
            f" {MOST_TAPS} taps along an axis and strides to {MOST_STRIDE}"
        )
    if max(p.padding) > 2 * MOST_TAPS:
        return no(f"padding={p.padding}: of first layers up to {2 * MOST_TAPS}")
    known = sized(p)
    if next(shapes(known, min(tensor_cores.SHARED.values())), None):
        return YES
    return no(
        f"{p.k} filters of {'x'.join(map(str, (*p.taps, p.c)))}: more than shared memory and a"
        " block's sums hold"
    )


def shapes(problem: ConvProblem, shared: int) -> Iterator[First]:
    """Shapes of a kernel for a problem that fit into some bytes."""
    found: dict[First, None] = {}
    many = _gradients(problem) if problem.kind is ConvKind.WGRAD else _results(problem)
    for shape in many:
        fits = shape.shared(problem.kind) <= shared and shape.registers(problem.kind) <= _REGISTERS
        if fits and shape.block_registers(problem.kind) <= launch_time.REGISTERS:
            found.setdefault(shape)
    yield from found


def _across(problem: ConvProblem, phases: int, most: int) -> int:
    """Units of a tile's row: the fewest idle columns, and of those the most units."""
    units = ceil_div(problem.q, 8 * phases)
    return min(range(min(units, most), 0, -1), key=lambda u: (ceil_div(units, u) * u, -u))


def _tiles(problem: ConvProblem, rows: tuple[int, ...], most: int) -> Iterator[tuple[int, int]]:
    """Rows and units: an even number of both together."""
    phases = problem.strides[-1] * problem.c % 2 + 1
    across = _across(problem, phases, most)
    for row in dict.fromkeys(min(r, problem.p) for r in rows):
        balanced = ceil_div(problem.p, ceil_div(problem.p, row))
        yield balanced + balanced * across % 2, across


def _fixed(problem: ConvProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A kernel's constants that are the problem's, and those of its depth."""
    p, deep = problem, problem.rank - 2
    fixed = (p.c, p.k, p.r, p.s, p.strides[-1], *p.padding[deep : deep + 2])
    return fixed, (p.t, p.padding[0]) if deep else ()


def _numbers(problem: ConvProblem, epilogue: tuple[str, ...], arch: int) -> list[Numbers]:
    """Those of an image's kernels do not tell its depth."""
    found = tensor_cores.candidates(shapes)(problem, epilogue, arch)
    return found if problem.rank == 3 else [numbers[:-2] for numbers in found]


def _results(problem: ConvProblem) -> Iterator[First]:
    p = problem
    fixed, deep = _fixed(p)
    groups = ceil_div(p.k, 32)
    for rows, across in _tiles(p, (4, 8, 2, 1), _UNITS):
        for mt, nt in ((2, 1), (2, 2), (4, 1), (1, 2), (1, 1), (1, 3), (2, 3), (4, 2)):
            if groups % nt or mt * nt * 16 > _SUMS:
                continue
            phases = p.strides[-1] * p.c % 2 + 1
            items = ceil_div(rows * across, 2 * mt) * phases
            warps_ = ceil_div(items, ceil_div(items, _WARPS))
            numbers: list[int] = [*fixed, rows, across, mt, nt, warps_, 2, *deep]
            yield First(*numbers)


def _gradients(problem: ConvProblem) -> Iterator[First]:
    p = problem
    fixed, deep = _fixed(p)
    for most in (_UNITS, _UNITS // 2, 4):
        for rows, across in _tiles(p, (4, 2, 1, 8), most):
            known: list[int] = [*fixed, 1, 1, 1, 1, 1, 1, *deep]
            for mt, nt in _sums(First(*known)):
                numbers: list[int] = [*fixed, rows, across, mt, nt, 1, 2, *deep]
                one = First(*numbers)
                apart, splits = one.apart(), 1
                while 2 * splits * apart <= _WARPS and 4 * splits <= rows * across:
                    splits *= 2
                yield replace(one, warps=apart * splits)


def _sums(problem: First) -> list[tuple[int, int]]:
    """Of a gradient's warp: MT and NT of which a step of all its warps is the cheapest."""
    blocks, filters = problem.blocks, problem.k // 8
    found: dict[tuple[int, int], float] = {}
    for down in range(1, min(blocks, 10) + 1):
        for beside in range(1, min(filters, 8) + 1):
            mt, nt = ceil_div(blocks, down), ceil_div(filters, beside)
            one = replace(problem, mt=mt, nt=nt)
            fits = 4 * mt * nt <= _SUMS and one.registers(ConvKind.WGRAD) <= _REGISTERS
            if fits and one.apart() <= 12:
                found[mt, nt] = one.apart() * _step(mt, nt)
    return sorted(found, key=lambda two: found[two])[:_SETS]


def _step(mt: int, nt: int) -> float:
    """Cycles of a gradient's warp: 16 pixels."""
    return 15 + 3.6 * mt + nt * (0.5 + 1.47 * mt)


def _item(z: First) -> float:
    """Cycles of a result's warp: its pixels, all filters."""
    loads = z.blocks * (10 + 4 * z.mt + 2 * z.nt + 16 * z.mt * z.nt)
    return 0.3 * (30 + z.groups / z.nt * (loads + 139 * z.mt * z.nt))


def _us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    """Expected: whole rounds of tiles, and memory, with rows that are read again."""
    p, z, kind = problem, First(*numbers), problem.kind
    planes = p.n * (p.z if p.rank == 3 else 1)
    tiles = planes * ceil_div(p.p, z.rows) * ceil_div(p.q, z.columns)
    units, fit, copied = z.rows * z.units, z.resident(kind), z.tile
    if kind is ConvKind.WGRAD:
        all_steps, each = units // 2 * z.apart(), _step(z.mt, z.nt)
        steps = ceil_div(units // 2, z.warps // z.apart())  # of a warp
        copied += units * z.phases * 16 * p.k
    else:
        all_steps, each = ceil_div(units, 2 * z.mt) * z.phases, _item(z)
        steps = ceil_div(all_steps, z.warps)
    by = math.gcd(p.w * p.c, 8)  # elements of a row that are copied at once
    copies = copied / 512 * _COPY[kind] + z.tile / 512 * _COPY[kind] * _NARROW[by]
    busy = all_steps * each + copies
    alone = _ALONE[kind] * (steps * each + copies / z.warps)
    rounds = ceil_div(tiles, launch_time.MULTIPROCESSORS * fit)
    whole = rounds * (launch_time.norm(_TOGETHER, fit * busy, alone) + _TILE[kind]) + _BEGIN[kind]
    memory = (p.bytes + tiles * z.tile * _AGAIN[kind]) / launch_time.BANDWIDTH
    both = launch_time.norm(_POWER[kind], whole / launch_time.CLOCK, memory)
    if kind is ConvKind.WGRAD:
        parts = min(tiles, _PARTS * fit // 2) * z.phases
        both += parts * p.k * p.c * math.prod(p.taps) * 4 / _PARTS_BANDWIDTH
    return tensor_cores.us(p, both)


FAMILY = Family(
    "first", (*tensor_cores.TEMPLATES, "first_rows.h", "first_image.h", "first_weight.h"),
    _accepts, _numbers, _us, tensor_cores.alignment, tensor_cores.OLDEST, ranks=(2, 3),
)  # fmt: skip
