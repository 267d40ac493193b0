"""Direct kernels for CPUs, generated for one problem and one target each.

Every kernel has the same form: operands that are not channel-last in the accumulator's dtype are
copied so (`words`), a core with its accumulators in registers does the work (which one, `choose`
says), and the result is copied out if need be.  All loops over memory are parallel and vectorised;
tile sizes follow the target (`machine`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as T

from relay_wgrad.given import of_type
from relay_wgrad.ir import FINISHED
from relay_wgrad.problem import ConvProblem

from . import volume
from .choose import choose
from .direct.product import as_product
from .machine import Machine, host_target, machine
from .words.loops import argument, one_core
from .words.memory import Memory

__all__ = ["choice", "host_target", "prim_func"]


def prim_func(problem: ConvProblem, target: Target | str) -> tirx.PrimFunc:
    """The kernel of `problem`: (first operand, second operand, result), destination-passing.

    Shapes and dtypes are `problem.shape(role)` and `problem.dtype(role)`; memory may begin at any
    multiple of an element's size.  All sizes are ints, but the number of images may be symbolic.
    The function is marked as scheduled and opaque, so that TVM neither reschedules nor fuses it.
    For a target with `num-cores` 1 its loops are serial.

    `target`: of kind llvm, or its text, such as "llvm".  Raises TypeError for another type of
    either, ValueError for another kind, for text that is no target and for a problem that is not
    valid.
    """
    of_type("prim_func: problem", problem, ConvProblem, "a ConvProblem")
    problem.check()
    target = _llvm(target)
    sizes = (problem.c, *problem.spatial, problem.k, *problem.taps)
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"CPU kernels are for static sizes (the batch excepted): {problem}")
    if problem.rank == 3 and not problem.is_static:
        raise ValueError(f"CPU kernels of three dimensions are for a static batch: {problem}")
    m = machine(target)
    with one_core(m.cores == 1), IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr(FINISHED)
        buffers = {
            role: argument(role, problem.dtype(role), problem.shape(role)) for role in problem.roles
        }
        if problem.rank == 3:
            volume.write(problem, m, buffers, partial(_write, m=m))
        else:
            _write(problem, buffers, m)
    return builder.get()


def _write(problem: ConvProblem, buffers: dict[str, Any], m: Machine) -> None:
    problem = as_product(problem)
    memory = Memory(problem, buffers, problem.accum_dtype, m)
    choose(problem, m).write(problem, m, memory)
    memory.scratch.keep()


def choice(problem: ConvProblem, target: Target | str) -> tuple[str, str]:
    """(name, reason) of the kernel that `prim_func` gives the problem; raises as it does."""
    flat = volume.flattened(problem.check()) if problem.rank == 3 else problem.check()
    rule = choose(as_product(flat), machine(_llvm(target)))
    if problem.rank == 3:
        return f"{volume.NAME}, {rule.name}", rule.reason
    return rule.name, rule.reason


def _llvm(target: Target | str) -> Target:
    """The argument of `prim_func` as a target of kind llvm."""
    if isinstance(target, str):
        try:
            target = Target(target)
        except Exception as error:  # TVM raises several kinds of its own
            raise ValueError(f"prim_func: {target!r} is not the text of a target") from error
    if not isinstance(target, Target):
        raise TypeError(
            "prim_func: target must be a tvm.target.Target or its text, got"
            f" {type(target).__name__}"
        )
    if str(target.kind.name) != "llvm":
        raise ValueError(
            f"prim_func: CPU kernels need a target of kind llvm, got {target.kind.name}"
        )
    return target
