"""Grouped convolutions between depthwise and dense on tensor cores: what they take, their tiles.

The device's code is `templates/grouped_*.h`; its `Shape` has a kernel's constants.  Groups of few
channels are taken several as one, with zeros between, so that channels come by 16 bytes.
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

_ENOUGH = 113 << 10  # bytes with which two blocks are on a multiprocessor
_CHANNELS = 64  # of a block, about: 128 bytes of a pixel
_SUMS = 80  # registers of a thread's sums, at most
MOST, MOST_TAPS, MOST_STRIDE = 64, 7, 4  # channels of a group; along an axis; dgrad's
_MERGED = 4  # groups taken as one, at most
_LONGER = {ConvKind.FPROP: 1.1, ConvKind.DGRAD: 1.35, ConvKind.WGRAD: 1.5}  # measured, of the count
_PARTS, _PARTS_BANDWIDTH = 264, 2.0e6  # of a weight's gradient; bytes per microsecond, out and in


@dataclass(frozen=True)
class Shape:
    """The constants of `templates/grouped_taps.h`, in its order."""

    cg: int
    kg: int
    merged: int
    r: int
    s: int
    stride: int
    dilation: int
    top: int
    left: int
    groups: int
    images: int
    rows: int
    units: int
    mt: int
    warps: int
    stages: int


def merged(problem: ConvProblem) -> int:
    """How many groups are taken as one, so that channels and filters are multiples of 8; or 0."""
    cg, kg = problem.c // problem.groups, problem.k // problem.groups
    many = math.lcm(8 // math.gcd(cg, 8), 8 // math.gcd(kg, 8))
    return many if problem.groups % many == 0 and many <= _MERGED else 0


def _accepts(problem: ConvProblem, epilogue: str) -> Decision:
    p = problem
    if p.groups == 1 and set(p.strides) == set(p.dilation) == {1}:
        return no("one group without strides or dilation")  # of few channels it is `narrow`'s
    if not (decision := tensor_cores.accepts(p, "grouped convolutions")):
        return decision
    cg, kg, many = p.c // p.groups, p.k // p.groups, merged(p)
    if not many:
        return no(f"C={cg} and K={kg} a group of {p.groups} do not come by 8 channels")
    if max(cg, kg) * many > MOST:
        return no(f"C={cg} and K={kg} a group: more than {MOST} channels")
    if p.kind is ConvKind.DGRAD and p.strides[0] > MOST_STRIDE:
        return no(f"strides={p.strides}: a gradient's is at most {MOST_STRIDE}")
    if max(p.r, p.s) > MOST_TAPS:
        return no(f"a kernel of {p.r}x{p.s}: there are up to {MOST_TAPS} taps along an axis")
    shape = next(shapes(sized(p), min(tensor_cores.SHARED.values())), None)
    return YES if shape else no("no tile fits into shared memory")


# Whether a block has half the channels, its units of 8 pixels, stages, a warp's times 16 pixels.
_VARIANTS = (
    (False, 28, 1, 1), (True, 28, 2, 1), (False, 28, 1, 2), (True, 56, 1, 1), (False, 14, 2, 1),
    (True, 28, 1, 1), (True, 14, 2, 1), (False, 14, 1, 1), (True, 8, 1, 1),
)  # fmt: skip


def shapes(problem: ConvProblem, shared: int) -> Iterator[Shape]:
    """Shapes of a kernel for a problem that fit into some bytes, the likely best first."""
    p, many = problem, merged(problem)
    cg, kg, back = p.c // p.groups, p.k // p.groups, p.kind is ConvKind.DGRAD
    stride = p.strides[0]
    rows, columns = (ceil_div(p.h, stride), ceil_div(p.w, stride)) if back else (p.p, p.q)
    most = max(1, min(p.groups // many, _CHANNELS // (max(cg, kg) * many)))
    found: dict[Shape, int] = {}
    for half, units, stages, mt in _VARIANTS:
        groups = max(1, most // 2) if half else most
        shape = Shape(
            cg, kg, many, p.r, p.s, stride, p.dilation[0], p.padding[0], p.padding[1], groups,
            *_tile(p.n, rows, columns, units), 1 if p.kind is ConvKind.WGRAD else mt, 0, stages,
        )  # fmt: skip
        shape = replace(shape, warps=_warps(p, shape))
        if shape.warps <= 16 and (size := shared_bytes(p.kind, shape)) <= shared:
            found.setdefault(shape, size)
    yield from sorted(found, key=lambda shape: found[shape] > _ENOUGH)


def _tile(n: int, rows: int, columns: int, units: int) -> tuple[int, int, int]:
    """Images, rows, times 8 columns; an even number of units."""
    across = ceil_div(columns, 8)
    tu = min(range(min(units, 8), 0, -1), key=lambda t: (ceil_div(across, t) * t, -t))
    tp = min(rows, max(1, units // tu))
    tp = ceil_div(rows, ceil_div(rows, tp))
    tn = max(1, min(n, units // (tp * tu))) if tp == rows and tu >= across else 1
    if tn * tp * tu % 2:
        tn, tp = (tn + 1, tp) if tn > 1 else (tn, tp + 1)
    return tn, tp, tu


def _warps(problem: ConvProblem, z: Shape) -> int:
    if problem.kind is not ConvKind.WGRAD:
        phases = z.stride**2 if problem.kind is ConvKind.DGRAD else 1
        items = ceil_div(z.images * z.rows * z.units, 2 * z.mt) * phases
        return ceil_div(items, ceil_div(items, 14))
    chunks, nb = z.r * z.s * z.cg * z.merged // 8, z.kg * z.merged // 8
    apart = max(1, ceil_div(8, z.groups))
    while ceil_div(ceil_div(chunks, 2), apart) * nb * 4 > _SUMS and z.groups * apart < 16:
        apart += 1
    return z.groups * apart


def _tile_bytes(kind: ConvKind, z: Shape) -> int:
    """What is read for a tile: the image's, or of dgrad the gradient's; of wgrad both."""
    back = kind is ConvKind.DGRAD
    ci, ki = z.cg * z.merged, z.kg * z.merged
    step = 1 if back else z.stride
    if back:
        offsets = [
            [(a + pad - t * z.dilation) // z.stride for a in range(z.stride) for t in range(taps)
             if (a + pad - t * z.dilation) % z.stride == 0]
            for pad, taps in ((z.top, z.r), (z.left, z.s))
        ]  # fmt: skip
        halo = [max(o) - min(o) for o in offsets]
    else:
        halo = [(z.r - 1) * z.dilation, (z.s - 1) * z.dilation]
    rows = (z.rows - 1) * step + halo[0] + 1
    wide = ceil_div((8 * z.units - 1) * step + halo[1] + 1, step) * step
    tile = z.images * rows * wide * (z.groups * (ki if back else ci) // 8 | 1) * 16
    if kind is ConvKind.WGRAD:
        grad = z.images * z.rows * z.units * 8 * (z.groups * ki // 8 | 1) * 16
        return tile + grad
    return tile


def shared_bytes(kind: ConvKind, z: Shape) -> int:
    """What `Image::BYTES` or `Weight::BYTES` is."""
    if kind is ConvKind.WGRAD:
        return z.stages * _tile_bytes(kind, z)
    ci, ki = z.cg * z.merged, z.kg * z.merged
    ins, outs = (ki, ci) if kind is ConvKind.DGRAD else (ci, ki)
    filters = (z.groups * outs * (z.r * z.s * ins // 8 | 1) + 4) * 16
    staged = z.warps * z.mt * 16 * (z.groups * outs // 8 | 1) * 16
    return filters + staged + z.stages * _tile_bytes(kind, z)


def _us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    """Expected: memory, with what tiles read twice, or what passes through shared memory."""
    p, z, back = problem, Shape(*numbers), problem.kind is ConvKind.DGRAD
    ci, ki = z.cg * z.merged, z.kg * z.merged
    ins, outs = (ki, ci) if back else (ci, ki)
    phases = z.stride**2 if back else 1
    rows, columns = (ceil_div(p.h, z.stride), ceil_div(p.w, z.stride)) if back else (p.p, p.q)
    tiles = ceil_div(p.n, z.images) * ceil_div(rows, z.rows) * ceil_div(columns, 8 * z.units)
    slabs = ceil_div(p.groups, z.groups * z.merged)
    units, chunks = z.images * z.rows * z.units, z.r * z.s * ins // 8
    tile = _tile_bytes(p.kind, z)
    wavefronts = 2 * tile / 128  # of 128 bytes, of a block for a tile
    if p.kind is ConvKind.WGRAD:
        chunks, blocks = z.r * z.s * ci // 8, ki // 8
        apart = z.warps // z.groups
        steps = ceil_div(ceil_div(chunks, 2), apart)
        each = 4 * (steps + ceil_div(blocks, 2))  # of a warp, of two units
        wavefronts += z.warps * units / 2 * each
        products = z.warps * units / 2 * steps * blocks
    else:
        items = ceil_div(units, 2 * z.mt)
        steps = phases * (ceil_div(chunks // phases, 4) + (phases > 1))
        each = z.groups * 4 * (steps * (outs // 8) + z.mt * ceil_div(chunks, 2))
        each += phases * z.mt * (2 * z.groups * outs // 8 + z.groups * outs // 4)
        wavefronts += items * each
        products = items * z.groups * z.mt * ceil_div(chunks, 2) * (outs // 8)
    fit = max(1, min(4, launch_time.SHARED // (shared_bytes(p.kind, z) + 1024)))
    # Two cycles of a multiprocessor for a product of 16 x 8 x 16.
    cycles = tiles * slabs * (wavefronts + 2 * products)
    busy = cycles / (launch_time.MULTIPROCESSORS * launch_time.CLOCK)
    read = tiles * slabs * tile * (0.3 if p.kind is not ConvKind.WGRAD else 0.15)
    memory = (p.bytes + max(0.0, read - p.bytes / 4)) / launch_time.BANDWIDTH
    waits = {1: 0.7, 2: 0.35}.get(fit * z.stages, 0.2)  # of the shorter, of a block that is alone
    longer = _LONGER[p.kind] * (max(busy, memory) + waits * min(busy, memory))
    if p.kind is ConvKind.WGRAD:
        parts = min(tiles, max(1, _PARTS // slabs))
        longer += parts * p.k * z.cg * z.r * z.s * 4 / _PARTS_BANDWIDTH
    return tensor_cores.us(p, longer)


FAMILY = Family(
    "grouped", (*tensor_cores.TEMPLATES, "grouped_taps.h", "grouped_image.h", "grouped_weight.h"),
    _accepts, tensor_cores.candidates(shapes), _us, tensor_cores.alignment, tensor_cores.OLDEST,
)  # fmt: skip
