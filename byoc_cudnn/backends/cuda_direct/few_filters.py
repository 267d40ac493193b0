"""Convolutions of few filters on tensor cores: what they take, and how long they should take.

The device's code is `templates/few_*.h`.  Taps are columns of a product as filters are, so that the
image is read once.
"""

from __future__ import annotations

from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import YES, Decision, no
from . import launch_time, tensor_cores
from .family import Family, Numbers

MOST, MOST_COLUMNS = 8, 160  # filters; filters times taps
_LONGER = 1.4  # measured, of the count
_GATHERED = {ConvKind.FPROP: 1.05, ConvKind.DGRAD: 0.3, ConvKind.WGRAD: 0.25}  # cycles, as measured
_POINT = 1.3  # of memory's time, where each pixel is met once: not fitted yet
_PRODUCTS = 2.0  # cycles of a multiprocessor for a product of 16 x 8 x 16


def _accepts(problem: ConvProblem, epilogue: str) -> Decision:
    p = problem
    if p.groups != 1:
        return no(f"groups={p.groups}: kernels of few filters have one group")
    if p.k > MOST:
        return no(f"K={p.k}: there are kernels of up to {MOST} filters")
    if not (decision := tensor_cores.accepts(p, "few filters")):
        return decision
    if p.k * p.r * p.s > MOST_COLUMNS:
        return no(f"{p.k} filters of {p.r}x{p.s}: more than {MOST_COLUMNS} filters times taps")
    return no(f"C={p.c}: channels do not come by 8") if p.c % 8 else YES


def _candidates(problem: ConvProblem, epilogue: tuple[str, ...], arch: int) -> list[Numbers]:
    p = problem
    return [(p.k, p.r, p.s, p.strides[0], p.dilation[0], *p.padding[:2])]


def _us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    """Expected: memory, and what stands before and after the products without hiding behind it."""
    p = problem
    pixels, columns = p.n * p.h * p.w, p.k * p.r * p.s
    device = launch_time.MULTIPROCESSORS * launch_time.CLOCK
    blocks, steps = -(-columns // 8), -(-p.c // 16)
    products = _PRODUCTS * pixels / 16 * blocks * steps / device
    gathered = pixels * columns * _GATHERED[p.kind] / device
    if p.kind is ConvKind.FPROP:
        products += pixels / 128 * 16 * blocks * steps / device  # the filters, from the cache
    memory = p.bytes / launch_time.BANDWIDTH
    if _is_point(p):
        return tensor_cores.us(p, _POINT * memory)
    busy = products + gathered
    return tensor_cores.us(p, _LONGER * (max(busy, memory) + 0.4 * min(busy, memory)))


def _is_point(problem: ConvProblem) -> bool:
    """Whether a gradient is one of `templates/few_point.h`."""
    p = problem
    one = (p.r, p.s, p.strides, p.padding) == (1, 1, (1, 1), (0, 0, 0, 0))
    return p.kind is not ConvKind.FPROP and one and 2048 % p.c == 0


FAMILY = Family(
    "few", (*tensor_cores.TEMPLATES, "few_point.h", "few_image.h", "few_weight.h"),
    _accepts, _candidates, _us, tensor_cores.alignment, tensor_cores.OLDEST,
)  # fmt: skip
