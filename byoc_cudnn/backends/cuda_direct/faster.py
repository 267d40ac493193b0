"""Which convolutions go to our own kernels only because they are faster than cuDNN's.

By an H200's times in float16, PyTorch's beside them (`gpu_depthwise_h200.json` of the benchmarks'
results, 2026-11-23): what was not measured there, in kind or size, is not known to be faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import YES, Decision, no
from . import check
from .check import Options
from .family import sized
from .model import ranked

_FPROP, _DGRAD, _WGRAD = ConvKind.FPROP, ConvKind.DGRAD, ConvKind.WGRAD
_COPY, _LAUNCH = 4.29e6, 4.0  # bytes per microsecond; microseconds
_ARCH = 90

CUDNN: dict[tuple[ConvKind, int, int], tuple[float, float]] = {
    (_FPROP, 3, 1): (1.5, 0.98), (_FPROP, 3, 2): (1.5, 0.90),
    (_FPROP, 5, 1): (3.4, 0.94), (_FPROP, 5, 2): (2.4, 0.91), (_FPROP, 7, 1): (7.4, 0.60),
    (_DGRAD, 3, 1): (2.1, 0.72), (_DGRAD, 3, 2): (5.2, 0.33),
    (_DGRAD, 5, 1): (3.2, 0.97), (_DGRAD, 5, 2): (12.0, 0.24), (_DGRAD, 7, 1): (18.5, 0.30),
    (_WGRAD, 3, 1): (1.7, 1.02), (_WGRAD, 3, 2): (1.5, 1.04),
    (_WGRAD, 5, 1): (3.5, 0.87), (_WGRAD, 5, 2): (3.2, 0.71), (_WGRAD, 7, 1): (5.7, 1.05),
}  # fmt: skip
"""(kind, taps along an axis, stride) -> how often cuDNN could have moved all tensors in its time,
the least of the sizes measured; and our time as a share of its, the largest."""


def bound(options: Options) -> Callable[[ConvProblem, str], Decision]:
    """What is taken under options: with `faster` only what is known to be that."""
    return partial(faster, oldest=options.archs[0]) if options.faster else check.bound(options)


def faster(problem: ConvProblem, epilogue: str, oldest: int = 80) -> Decision:
    """Whether a problem that `check` takes is also known to be faster than by cuDNN."""
    if not (decision := check.check(problem, epilogue, oldest)):
        return decision
    p, square = problem, (problem.r, problem.strides[0])
    known = (p.kind, *square)
    half = {p.dtype(role) for role in p.roles} == {"float16"}
    if p.groups != p.c or not half or (p.s, p.strides[1]) != square:
        return no("not known to be faster than cuDNN's: measured are depthwise ones in float16")
    if known not in CUDNN:
        return no(
            f"not known to be faster than cuDNN's: {p.kind.value} of {p.r}x{p.s}, stride"
            f" {p.strides[0]} was not measured"
        )
    moved, share = CUDNN[known]
    if share > 1:
        return no(f"{share:.2f} of cuDNN's time at one of the sizes measured")
    theirs = _LAUNCH + moved * sized(p).bytes / _COPY
    ours = ranked(p, tuple(word for word in epilogue.split("_") if word), _ARCH)[0].us
    if ours > theirs:
        return no(f"{ours:.0f} µs are expected, and {theirs:.0f} of cuDNN")
    return YES
