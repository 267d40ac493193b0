"""What a family of kernels is: templates, what they take, and which instances of them to consider.

A kernel is an instance of a family's templates.  For a problem of kind `fprop` it is the function
template `<family>_fprop<T, Out, After, numbers...>(const RelayWgradDirectCall&, cudaStream_t)`:
`T` is the operands' type, `Out` the result's, `After` the epilogue (`direct_epilogue.h`).  It
launches kernels and returns 0, or a CUDA error's number below 0.  One that needs a workspace says
how many bytes where `call.wanted` is no null pointer, and launches nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from relay_wgrad.problem import ConvProblem

from ...decision import Decision

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """One family.

    name : lower-case words joined by "_"; it begins the names of its functions.
    templates : files of `templates`, after `direct_problem.h`, `device_packs.h` and
        `direct_epilogue.h`.
    accepts : whether it takes a problem with an epilogue's name; layouts and dtypes are checked.
        Batch, height and width may be symbolic.
    candidates : the template arguments to consider for a problem with sizes and a GPU, as nvcc
        numbers it; never empty where `accepts` says yes.  The epilogue is given as steps' names.
    predict : microseconds that are expected of one on a GPU.
    alignment : bytes at which all tensors must lie, of the numbers and an element's size.
    oldest : the oldest GPU that runs its kernels, as nvcc numbers it.
    ranks : of the images that it takes; planes of a volume are images where `of_planes` says so.
    """

    name: str
    templates: tuple[str, ...]
    accepts: Callable[[ConvProblem, str], Decision]
    candidates: Callable[[ConvProblem, tuple[str, ...], int], Sequence[Numbers]]
    predict: Callable[[ConvProblem, Numbers, int], float]
    alignment: Callable[[ConvProblem, Numbers], int]
    oldest: int = 75
    ranks: tuple[int, ...] = (2,)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def of_planes(problem: ConvProblem) -> ConvProblem:
    """The problem of a volume's planes as images, where no tap leaves its plane and planes follow
    each other in memory; else the problem itself."""
    p = problem
    if p.rank == 2 or p.data_layout != "NDHWC":
        return p
    if (p.t, p.strides[0], p.padding[0], p.padding[3]) != (1, 1, 0, 0):
        return p
    return replace(
        p, n=p.n * p.d, d=None, t=None, strides=p.strides[1:], dilation=p.dilation[1:],
        padding=(*p.padding[1:3], *p.padding[4:]), data_layout="NHWC", kernel_layout="OHWI",
        grad_layout="NHWC",
    )  # fmt: skip
