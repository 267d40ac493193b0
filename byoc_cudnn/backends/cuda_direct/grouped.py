"""Grouped convolutions between depthwise and dense on tensor cores: which shape a kernel has.

The device's code is `templates/grouped_*.h`; its `Shape` has a kernel's constants.  Groups of few
channels are taken several as one, with zeros between, so that channels come by 16 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

from relay_wgrad.problem import ConvKind, ConvProblem

ELEMENTS = {"float16": "__half", "bfloat16": "__nv_bfloat16"}
PARTS = ("few_call.h", "warp_device.h", "few_parts.h", "grouped_taps.h")
_SHARED = 227 << 10  # bytes of a block, at most
_ENOUGH = 113 << 10  # bytes with which two blocks are on a multiprocessor
_CHANNELS = 64  # of a block, about: 128 bytes of a pixel
_SUMS = 80  # registers of a thread's sums, at most
MOST = 64  # channels or filters of a group, at most
_MERGED = 4  # groups taken as one, at most


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


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def merged(problem: ConvProblem) -> int:
    """How many groups are taken as one, so that channels and filters are multiples of 8; or 0."""
    cg, kg = problem.c // problem.groups, problem.k // problem.groups
    many = math.lcm(8 // math.gcd(cg, 8), 8 // math.gcd(kg, 8))
    return many if problem.groups % many == 0 and many <= _MERGED else 0


def reason(problem: ConvProblem) -> str:
    """Why there is no kernel for a problem; empty if there is."""
    p = problem
    dtypes = {p.data_dtype, p.weight_dtype, p.grad_dtype}
    if len(dtypes) != 1 or p.data_dtype not in ELEMENTS:
        return f"grouped kernels are of {', '.join(ELEMENTS)}, got {sorted(dtypes)}"
    if (p.data_layout, p.kernel_layout, p.grad_layout) != ("NHWC", "OHWI", "NHWC"):
        return "grouped kernels are of NHWC and OHWI"
    if p.groups == 1:
        return "one group"
    many = merged(p)
    if not many:
        return f"{p.c // p.groups} channels and {p.k // p.groups} filters a group do not come by 8"
    if max(p.c, p.k) // p.groups * many > MOST:
        return f"more than {MOST} channels a group"
    if p.strides[0] != p.strides[1] or p.dilation[0] != p.dilation[1]:
        return "strides and dilation must be the same down and across"
    if p.kind is ConvKind.DGRAD and p.strides[0] > 4:
        return "a gradient's stride is at most 4"
    if max(p.r, p.s) > 7:
        return "more than 7 taps"
    return "" if next(shapes(p), None) else "no tile fits into shared memory"


# Whether a block has half the channels, its units of 8 pixels, stages, a warp's times 16 pixels.
_VARIANTS = (
    (False, 28, 1, 1), (True, 28, 2, 1), (False, 28, 1, 2), (True, 56, 1, 1), (False, 14, 2, 1),
    (True, 28, 1, 1), (True, 14, 2, 1), (False, 14, 1, 1), (True, 8, 1, 1),
)  # fmt: skip


def shapes(problem: ConvProblem) -> Iterator[Shape]:
    """Shapes of a kernel for a problem, the likely best first."""
    p, many = problem, merged(problem)
    cg, kg, back = p.c // p.groups, p.k // p.groups, p.kind is ConvKind.DGRAD
    stride = p.strides[0]
    rows, columns = (_ceil(p.h, stride), _ceil(p.w, stride)) if back else (p.p, p.q)
    most = max(1, min(p.groups // many, _CHANNELS // (max(cg, kg) * many)))
    found: dict[Shape, int] = {}
    for half, units, stages, mt in _VARIANTS:
        groups = max(1, most // 2) if half else most
        shape = Shape(
            cg, kg, many, p.r, p.s, stride, p.dilation[0], *p.padding[:2], groups,
            *_tile(p.n, rows, columns, units), 1 if p.kind is ConvKind.WGRAD else mt, 0, stages,
        )  # fmt: skip
        shape = replace(shape, warps=_warps(p, shape))
        if shape.warps <= 16 and (size := shared_bytes(p.kind, shape)) <= _SHARED:
            found.setdefault(shape, size)
    yield from sorted(found, key=lambda shape: found[shape] > _ENOUGH)


def _tile(n: int, rows: int, columns: int, units: int) -> tuple[int, int, int]:
    """Images, rows, times 8 columns; an even number of units."""
    across = _ceil(columns, 8)
    tu = min(range(min(units, 8), 0, -1), key=lambda t: (_ceil(across, t) * t, -t))
    tp = min(rows, max(1, units // tu))
    tp = _ceil(rows, _ceil(rows, tp))
    tn = max(1, min(n, units // (tp * tu))) if tp == rows and tu >= across else 1
    if tn * tp * tu % 2:
        tn, tp = (tn + 1, tp) if tn > 1 else (tn, tp + 1)
    return tn, tp, tu


def _warps(problem: ConvProblem, z: Shape) -> int:
    if problem.kind is not ConvKind.WGRAD:
        phases = z.stride**2 if problem.kind is ConvKind.DGRAD else 1
        items = _ceil(z.images * z.rows * z.units, 2 * z.mt) * phases
        return _ceil(items, _ceil(items, 14))
    chunks, nb = z.r * z.s * z.cg * z.merged // 8, z.kg * z.merged // 8
    apart = max(1, _ceil(8, z.groups))
    while _ceil(_ceil(chunks, 2), apart) * nb * 4 > _SUMS and z.groups * apart < 16:
        apart += 1
    return z.groups * apart


def shared_bytes(kind: ConvKind, z: Shape) -> int:
    """What `Image::BYTES` or `Weight::BYTES` is."""
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
    wide = _ceil((8 * z.units - 1) * step + halo[1] + 1, step) * step
    tile = z.images * rows * wide * (z.groups * (ki if back else ci) // 8 | 1) * 16
    if kind is ConvKind.WGRAD:
        grad = z.images * z.rows * z.units * 8 * (z.groups * ki // 8 | 1) * 16
        return z.stages * (tile + grad)
    ins, outs = (ki, ci) if back else (ci, ki)
    filters = (z.groups * outs * (z.r * z.s * ins // 8 | 1) + 4) * 16
    return filters + z.warps * z.mt * 16 * (z.groups * outs // 8 | 1) * 16 + z.stages * tile


def body(problem: ConvProblem, shape: Shape, name: str) -> tuple[list[str], str]:
    """The templates of a kernel, and what its object exports."""
    constants = ", ".join(map(str, astuple(shape)))
    z = f"Shape<{ELEMENTS[problem.data_dtype]}, {constants}>"
    if problem.kind is ConvKind.WGRAD:
        run, bytes_ = f"grouped_filters<{z}>", f"grouped_workspace<{z}>(call)"
    else:
        run, bytes_ = f"grouped<{z}, {str(problem.kind is ConvKind.DGRAD).lower()}>", "0"
    part = "grouped_weight.h" if problem.kind is ConvKind.WGRAD else "grouped_image.h"
    return [*PARTS, part], exported(name, run, bytes_)


def exported(name: str, run: str, workspace: str) -> str:
    return (
        f'extern "C" int {name}(const RelayWgradFewCall& call, cudaStream_t stream) {{\n'
        f"  return {run}(call, stream);\n}}\n"
        f'extern "C" int64_t {name}_workspace(const RelayWgradFewCall& call) {{\n'
        f"  return {workspace};\n}}\n"
    )
