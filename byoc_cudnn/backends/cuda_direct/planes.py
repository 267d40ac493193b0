"""Dense convolutions of volumes with 32 channels on tensor cores: what they take, their tiles.

The device's code is `templates/planes_*.h`; its `Planes` has a kernel's constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import YES, Decision, no
from ..assumed_sizes import sized
from . import launch_time, tensor_cores
from .family import Family, Numbers

CHANNELS, TAPS = 32, (3, 3, 3)
MOST_READ = 64  # channels of a result's operand
_THREADS = 256
_OLDEST = 90  # whose blocks have the shared memory
_TILES = {
    ConvKind.FPROP: ((16, 32), (32, 16), (8, 32), (16, 16), (8, 16), (4, 32)),
    ConvKind.WGRAD: ((8, 32), (8, 16), (4, 32), (4, 16)),
}  # fmt: skip
"""Rows and columns of planes; dgrad's are fprop's."""
_TILES[ConvKind.DGRAD] = _TILES[ConvKind.FPROP]
_RATE = 0.62 * 2048  # products of a multiprocessor's cycle that `mma.sync` reaches


@dataclass(frozen=True)
class Planes:
    """The constants of `templates/planes_columns.h`, in its order."""

    c: int
    k: int
    taps: int
    r: int
    s: int
    front: int
    top: int
    left: int
    rows: int
    columns: int

    def shared(self, kind: ConvKind) -> int:
        """What `PlanesWeight::BYTES` or `PlanesImage::BYTES` is."""
        across = (self.columns + self.s) // 2 * 2
        ring = (self.taps + 1) * (self.rows + self.r - 1) * across
        if kind is ConvKind.WGRAD:
            return 64 * (ring + 2 * self.rows * self.columns)
        parts = self.parts(kind)
        filters = self.taps * self.r * self.s * CHANNELS
        sums = (parts - 1) * (self.high(kind) // parts) * 4 * _THREADS * 16
        return 64 * parts * (ring + filters) + sums

    def parts(self, kind: ConvKind) -> int:
        """Of the channels that a result reads."""
        return (self.c if kind is ConvKind.FPROP else self.k) // CHANNELS

    def high(self, kind: ConvKind) -> int:
        """Rows of a warp of a result; 0 where warps do not divide a tile."""
        down, rest = divmod(_THREADS // 32, self.parts(kind) * (self.columns // 16))
        high, left = divmod(self.rows, max(1, down))
        return 0 if rest or left or high % self.parts(kind) else high


def _accepts(problem: ConvProblem, epilogue: str) -> Decision:
    p, what = problem, "kernels of planes"
    if not (decision := tensor_cores.accepts_dense(p, what)):
        return decision
    if p.taps != TAPS or set(p.strides) != {1} or set(p.dilation) != {1}:
        return no(
            f"taps={p.taps} strides={p.strides} dilation={p.dilation}: {what} have 3x3x3, 1, 1"
        )
    if p.c % CHANNELS or p.k % CHANNELS:
        return no(f"C={p.c} and K={p.k}: {what} have channels and filters by {CHANNELS}")
    if max(p.padding) > 2:
        return no(f"padding={p.padding}: {what} have up to 2")
    read = p.c if p.kind is ConvKind.FPROP else p.k
    if p.kind is not ConvKind.WGRAD and read > MOST_READ:
        return no(f"{p.kind.value} of C={p.c} and K={p.k}: {what} read up to {MOST_READ} channels")
    known = sized(p)
    if p.kind is ConvKind.WGRAD and next(shapes(known, 1 << 20), None) is None:
        return no(f"{known.p}x{known.q} pixels: {what} have rows by 4 and columns by 16")
    return YES


def shapes(problem: ConvProblem, shared: int) -> Iterator[Planes]:
    """Shapes of a kernel for a problem that fit into some bytes."""
    p = problem
    for rows, columns in _TILES[p.kind]:
        if p.kind is not ConvKind.WGRAD or (p.p % rows == 0 and p.q % columns == 0):
            numbers: list[int] = [p.c, p.k, *p.taps, *p.padding[:3], rows, columns]
            found = Planes(*numbers)
            fits = p.kind is ConvKind.WGRAD or found.high(p.kind)
            if fits and found.shared(p.kind) <= shared:
                yield found


def _us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    p, z = problem, Planes(*numbers)
    products = p.flop / 2 / (launch_time.MULTIPROCESSORS * launch_time.CLOCK * _RATE)
    return tensor_cores.us(p, 1.3 * products * (1 + 1 / z.rows / z.columns))


FAMILY = Family(
    "planes", (*tensor_cores.TEMPLATES, "planes_columns.h", "planes_image.h", "planes_weight.h"),
    _accepts, tensor_cores.candidates(shapes), _us, tensor_cores.alignment, _OLDEST, ranks=(3,),
)  # fmt: skip
