"""Which convolutions CUTLASS's 3.x main loops, wgmma fed by TMA, can do: rules without a device."""

from __future__ import annotations

import math

from relay_wgrad.dtypes import HALVES
from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

WGMMA, GEMM = "wgmma", "gemm"
HOPPER = (WGMMA, GEMM)
"""Algorithms: an implicit GEMM, and a plain one, for 1x1 without strides and padding."""

MAX_PIXELS = 2**31
"""Pixels of all images are counted in 32 bits; bytes are not."""
_ROW = 16  # bytes that divide what TMA reads, and what a lane writes
_MOST_STRIDE, _MOST_REACH = 8, 127  # of TMA's im2col mode: 8 bits for a corner and for an offset


def hopper_algorithm(problem: ConvProblem) -> str | None:
    """The algorithm for a problem in NHWC; None if there is none.

    A strided dgrad is one of stride 1 for each phase of its strides; each must have taps, or, of a
    single tap, the first phase writes the zeros of the others.
    """
    first, second, result = (problem.dtype(role) for role in problem.roles)
    wgrad = problem.kind is ConvKind.WGRAD
    if first not in HALVES or second != first or problem.groups != 1:
        return None
    width = 4 if wgrad else DTYPE_BYTES[result]  # a weight gradient's sums are float32
    c, k = int(problem.c), int(problem.k)
    written = k if problem.kind is ConvKind.FPROP else c
    if any(n * size % _ROW for n, size in ((c, 2), (k, 2), (written, width))):
        return None
    if any(_pixels(problem, role) >= MAX_PIXELS for role in ("data", "grad")):
        return None
    taps, strides, padding = (problem.r, problem.s), problem.strides, problem.padding
    if taps == (1, 1) and strides == (1, 1) and not any(padding):
        return GEMM
    if problem.kind is ConvKind.DGRAD and max(strides) > 1:
        axes = zip(taps, strides, padding[:2], strict=True)
        if not all(t >= u or (t == 1 and before % u == 0) for t, u, before in axes):
            return None
    reach = [d * (t - 1) for d, t in zip(problem.dilation, taps, strict=True)]
    fits = max(strides) <= _MOST_STRIDE and max(*reach, *padding) <= _MOST_REACH
    return WGMMA if fits else None


def _pixels(problem: ConvProblem, role: str) -> int:
    """Of all images, as far as it is known."""
    sizes = problem.canonical_shape(role)
    return math.prod(size for size in (sizes[0], *sizes[2:]) if isinstance(size, int))
