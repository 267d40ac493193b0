"""Rules that several backends have: a problem to a `Decision`."""

from __future__ import annotations

from collections.abc import Sequence

from relay_wgrad.dtypes import MIXED
from relay_wgrad.problem import ConvKind, ConvProblem

from ..decision import YES, Decision, no
from ..fused import MASKS

STORED: dict[ConvKind, tuple[str, ...]] = {
    ConvKind.FPROP: (
        "bias_relu", "bias_relu6", "bias_silu", "residual_relu", "bias", "residual", "relu",
        "relu6", "silu", "",
    ),
    ConvKind.DGRAD: ("bias_relu", "residual_relu", "bias", "residual", "relu", *MASKS, ""),
    ConvKind.WGRAD: ("",),
}  # fmt: skip
"""Kind -> epilogues, big to small, of kernels that store their results by code of ours."""


def known_channels(problem: ConvProblem) -> Decision:
    """Yes where channels and taps are numbers: what kernels and plans are made for."""
    names = ("c", "k", *("t", "r", "s")[-problem.rank :])
    sizes = {name: getattr(problem, name) for name in names}
    symbolic = [f"{name.upper()}={v}" for name, v in sizes.items() if not isinstance(v, int)]
    if symbolic:
        return no(f"symbolic channels or kernel: {', '.join(symbolic)}")
    return YES


def two_dimensions(problem: ConvProblem) -> Decision:
    """Yes for images, no for volumes."""
    return YES if problem.rank == 2 else no("three dimensions: the kernels here are of two")


def not_empty(problem: ConvProblem) -> Decision:
    """Yes where no tensor is known to have no elements."""
    for role in ("data", "weight", "grad"):
        if any(isinstance(size, int) and size < 1 for size in problem.canonical_shape(role)):
            return no(f"{role} is empty: {list(problem.shape(role))}")
    return YES


def one_of_layouts(
    problem: ConvProblem, layouts: Sequence[tuple[str, str, str]], there_is: str
) -> Decision:
    """Yes for one of some triples (data, weight, grad).

    there_is : what the reason says before the layouts that there are.
    """
    found = (problem.data_layout, problem.kernel_layout, problem.grad_layout)
    if found in layouts:
        return YES
    known = " or ".join("/".join(triple) for triple in layouts)
    return no(f"layouts {'/'.join(found)}: {there_is} {known}")


def one_dtype(problem: ConvProblem, there_is: str) -> Decision:
    """Yes where both operands are of one dtype, and the result of theirs or float32.

    there_is : what the reason says before the dtypes that there are.
    """
    first, second, result = (problem.dtype(role) for role in problem.roles)
    for dtype in (first, second, result):
        if dtype not in MIXED:
            return no(f"dtype {dtype}: {there_is} {', '.join(MIXED)}")
    if first != second or result not in (first, "float32"):
        return no(
            f"dtypes {first} and {second} to {result}: both operands must be of one dtype, and the"
            " result of theirs or float32"
        )
    return YES
