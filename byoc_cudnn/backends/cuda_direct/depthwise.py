"""Depthwise convolutions: which kernels there are, for what, and how long they should take."""

from __future__ import annotations

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...decision import YES, Decision, no
from .family import Family, Numbers

MOST_TAPS = 31  # along an axis
_BANDWIDTH = 3.9e6  # bytes per microsecond that kernels of ours reach on sm_90
_LAUNCH = 3.0  # microseconds


def _is_depthwise(problem: ConvProblem, epilogue: str) -> Decision:
    if problem.groups != problem.c:
        return no(f"groups={problem.groups} of C={problem.c}: not depthwise")
    if max(problem.r, problem.s) > MOST_TAPS:
        return no(f"a kernel of {problem.r}x{problem.s}; there are up to {MOST_TAPS} along an axis")
    return YES


def _any(problem: ConvProblem, epilogue: tuple[str, ...], arch: int) -> list[Numbers]:
    return [()]


def _any_us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    """Each element is read again for each tap, by single loads."""
    loads = problem.flop / 2
    slow = 8.0 if problem.kind is ConvKind.WGRAD else 1.0
    return _LAUNCH + slow * loads / 1.2e6 + problem.bytes / _BANDWIDTH


FAMILIES = (
    Family(
        "depthwise_any", ("depthwise_any.h",), _is_depthwise, _any, _any_us,
        lambda problem, numbers: DTYPE_BYTES[problem.data_dtype],
    ),
)  # fmt: skip
