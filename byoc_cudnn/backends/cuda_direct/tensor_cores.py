"""What the families on tensor cores by warps have in common: what they take, and the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple
from typing import Any

from relay_wgrad.dtypes import HALVES
from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import YES, Decision, no
from .family import Numbers
from .launch_time import LAUNCH, SECOND

TEMPLATES = ("warp_device.h", "warp_parts.h")
OLDEST = 80  # the first GPUs with asynchronous copies and bfloat16's products
SHARED = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Bytes of shared memory that a block may have, by GPU; what is taken has a kernel for each."""


def accepts(problem: ConvProblem, what: str) -> Decision:
    """The rules that they share; `what` says whose they are."""
    p = problem
    if p.data_layout not in ("NHWC", "NDHWC"):
        return no(f"layout {p.data_layout}: {what} are in NHWC or NDHWC")
    first, _, result = (p.dtype(role) for role in p.roles)
    if first not in HALVES:
        return no(f"dtype {first}: {what} are in {' and '.join(HALVES)}")
    if result != first and p.kind is not ConvKind.WGRAD:
        return no(f"{first} to {result}: {what} have float32 only of a weight's gradient")
    if len(set(p.strides)) > 1 or len(set(p.dilation)) > 1:
        return no(f"strides={p.strides} dilation={p.dilation}: {what} have the same along all axes")
    return YES


def accepts_dense(problem: ConvProblem, what: str) -> Decision:
    """`accepts` of families that have one group."""
    if problem.groups != 1:
        return no(f"groups={problem.groups}: {what} have one group")
    return accepts(problem, what)


def us(problem: ConvProblem, busy: float) -> float:
    """Microseconds, with the launches: a weight's gradient has two."""
    return LAUNCH + SECOND * (problem.kind is ConvKind.WGRAD) + busy


def candidates(
    shapes: Callable[[ConvProblem, int], Iterable[Any]],
) -> Callable[[ConvProblem, tuple[str, ...], int], list[Numbers]]:
    """A family's candidates: the numbers of its shapes that fit into a block's shared memory."""
    return lambda problem, epilogue, arch: [astuple(z) for z in shapes(problem, SHARED[arch])]


def alignment(problem: ConvProblem, numbers: Numbers) -> int:
    """Bytes at which all tensors must lie."""
    return 16
