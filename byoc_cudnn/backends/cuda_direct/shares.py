"""Depthwise convolutions on tensor cores, in equal shares: the kernels, and their times.

The device's code is `templates/shares_*.h`; its `Shares` has a kernel's constants.  Products are
those of `bands.py`, with a stride of 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import Decision, no
from . import bands, machine, warps
from .family import Family, Numbers

_CHANNELS = (48, 32, 24, 16)  # of a block, four for each of its warps
# Rows ahead, and steps for each time that warps wait for each other.
_AHEAD = ((6, 1), (4, 1), (6, 2), (8, 2))
# Up to how many taps they are chosen, by kind: where times say that they are faster.
TAKEN = {ConvKind.FPROP: 0, ConvKind.DGRAD: 0, ConvKind.WGRAD: 0}
_LAST = 10.0  # times what is expected: of others, so that they come last
# Expected, from the constants of `bands.py`, whose fit knows what passes shared memory.
_SHARED, _STEP, _WAIT = 0.89, 270.0, 290.0  # cycles
_BEGIN, _FILL, _NEXT = 3475.0, 0.013, 300.0  # of a block, a byte of its first rows, a tile
_SECTORS, _SECOND, _POWER = 8.0, 1.6, 3.1
_LIGHT = 0.5  # of a step: a row of a tile that is not there


@dataclass(frozen=True)
class Shares:
    """A kernel's numbers, in the order of the template's; they mean what those of `Bands` do.

    together : steps for each time that warps wait for each other.
    """

    channels: int
    r: int
    s: int
    top: int
    left: int
    across: int
    images: int
    ahead: int
    fit: int
    together: int = 1

    @property
    def numbers(self) -> Numbers:
        return astuple(self)

    @property
    def threads(self) -> int:
        return 8 * self.channels

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
        """Bytes of a block."""
        ring = self.ahead * self.row(kind)
        if kind is ConvKind.WGRAD:
            return max(ring, 2048 * self.warps) + 16
        results = 2 * self.together * 16 * (8 * 16 * (self.channels // 8 | 1) + 16)
        return self.channels * self.r * self.s * 2 + ring + results + 16

    def registers(self, kind: ConvKind) -> int:
        """Of a thread, with which nvcc spills nothing, or next to nothing."""
        if self.r > 3:
            return 255
        return 208 if kind is ConvKind.WGRAD else 168

    def step(self, kind: ConvKind) -> float:
        """Cycles of a multiprocessor for a warp's step: what passes shared memory."""
        copied = -(-self.images * (8 * self.across - 1 + self.s) // 32)
        if kind is ConvKind.WGRAD:
            return _SHARED * (24 + 2 * (copied + -(-self.images * self.across // 4)))
        return _SHARED * (4 * ((6 + self.s) // 4 + 1) + 16 + 2 * copied)


def _accepts(problem: ConvProblem, epilogue: str) -> Decision:
    p = problem
    if p.strides != (1, 1):
        return no(f"strides={p.strides}: rows are in equal shares with strides of 1")
    if max(p.padding[0], p.padding[2]) >= p.r:
        return no(f"padding={p.padding} of {p.r} rows: all results meet a row of the image here")
    return bands.accepts(problem, epilogue)


def _shapes(problem: ConvProblem, shared: int) -> Iterator[Shares]:
    p, (across, images), (top, left) = problem, bands.tile(problem), problem.padding[:2]
    for channels in _CHANNELS:
        if channels > 16 and channels - 8 >= p.c:
            continue
        for ahead, together in _AHEAD:
            z = Shares(channels, p.r, p.s, top, left, across, images, ahead, 1, together)
            size = z.shared(p.kind)
            fit = machine.REGISTERS // (z.threads * z.registers(p.kind))
            fit = min(fit, machine.SHARED // (size + 1024), 8)
            if size <= shared and fit:
                yield replace(z, fit=fit)


def _candidates(problem: ConvProblem, epilogue: tuple[str, ...], arch: int) -> list[Numbers]:
    return [z.numbers for z in _shapes(problem, warps.SHARED[arch])]


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def share(tiles: int, rows: int, slabs: int, fit: int, ramp: int, light: int) -> int:
    """`share_of` of shares_rows.h."""
    most = max(1, machine.MULTIPROCESSORS * fit // slabs)
    whole, part = _ceil(tiles, most), _ceil(tiles * rows, most)
    one = 2 * whole * rows + whole * light
    return whole * rows if one <= 2 * (part + ramp) + part // rows * light else part


def expected(problem: ConvProblem, numbers: Numbers) -> float:
    """Microseconds: a share's steps, and memory, which hide each other in part."""
    p, z = problem, Shares(*numbers)
    rows, columns = bands.extent(p)
    slabs, tiles = _ceil(p.c, z.channels), _ceil(p.n, z.images) * _ceil(columns, 8 * z.across)
    light = z.r - 1 - z.top if p.kind is ConvKind.DGRAD else z.top
    of = share(tiles, rows, slabs, z.fit, z.r - 1, light)
    blocks = slabs * _ceil(tiles * rows, of)
    parts = _ceil(of, rows)
    steps = of + (z.r - 1 if of % rows else 0) + _LIGHT * light * parts
    full, left = divmod(_ceil(blocks, machine.MULTIPROCESSORS), z.fit)
    busy = 0.0
    for together, times in ((z.fit, full), (left, 1 if left else 0)):
        each = together * z.warps * z.step(p.kind) + (_STEP + _WAIT / z.ahead) / z.together
        filled = _FILL * together * z.ahead * z.row(p.kind)
        busy += times * (steps * each + _BEGIN + filled + _NEXT * (parts - 1))
    memory = p.bytes * (1 + _SECTORS / z.channels) / machine.BANDWIDTH
    both = float(((busy / machine.CLOCK) ** _POWER + memory**_POWER) ** (1 / _POWER))
    return warps.us(p, both) + _SECOND * (p.kind is ConvKind.WGRAD)


def _us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    taken = max(problem.r, problem.s) <= TAKEN[problem.kind]
    return expected(problem, numbers) * (1.0 if taken else _LAST)


FAMILY = Family(
    "depthwise_shares",
    (*warps.TEMPLATES, "bands_rows.h", "bands_image.h", "bands_weight.h", "shares_rows.h",
     "shares_image.h", "shares_weight.h"),
    _accepts, _candidates, _us, warps.alignment, warps.OLDEST,
)  # fmt: skip
