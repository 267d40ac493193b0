"""Scheduled CUDA kernels for fprop, dgrad and wgrad, generated for one problem each.

All run on CUDA cores with float32 accumulation (float64 if a tensor is), so that their results
match the definition to rounding, for every layout, group count, stride, dilation and padding.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from relay_wgrad.ir import FINISHED
from relay_wgrad.problem import ConvProblem

from ..kernel import Kernel, target_of
from . import gemm, reduce
from .emitters import Kernels, building
from .implicit_gemm import view_of
from .plan import Plan, plan_of


def prim_func(
    problem: ConvProblem,
    target: Target | str | None = None,
    *,
    simulate: bool = False,
    choice: Plan | None = None,
) -> tirx.PrimFunc:
    """The kernel of `problem`: (first operand, second operand, result), destination-passing.

    Shapes and dtypes are `problem.shape(role)` and `problem.dtype(role)`; sizes may be symbolic.
    The function is marked as scheduled and opaque, so that TVM neither reschedules nor fuses it.
    `simulate=True` gives the same kernel as serial loops over its blocks and threads, which any
    CPU target can build: see `emitters`.  `choice` overrides which kernel, tile and split is taken.

    `target`: a target, its text, or None for an H200; the number of its multiprocessors is used.
    Raises TypeError for anything else, ValueError for text that is no target and for a problem that
    is not valid.
    """
    return kernel(problem, target, simulate=simulate, choice=choice).func


def kernel(
    problem: ConvProblem,
    target: Target | str | None = None,
    *,
    simulate: bool = False,
    choice: Plan | None = None,
) -> Kernel:
    """`prim_func` with the name of the kernel chosen and the reason; raises as it does."""
    if problem.rank != 2:
        raise ValueError(f"CUDA kernels are of two dimensions: {problem}")
    view = view_of(problem.check())
    choice = choice or plan_of(view, target_of(target, none=True))
    name, reason = choice.described
    e = Kernels(simulate)
    with building() as builder:
        T.func_attr(FINISHED)
        buffers: dict[str, Any] = {
            role: T.arg(role, T.buffer(problem.shape(role), problem.dtype(role)))
            for role in problem.roles
        }
        if choice.tile is not None:
            gemm.write(e, view, choice.tile, choice.splits, buffers)
        else:
            reduce.write(e, view, choice.outputs, choice.splits, buffers)
    return Kernel(builder.get(), name, reason)
