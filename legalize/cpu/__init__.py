"""Direct kernels for CPUs, generated for one problem and one target each.

Every kernel has the same form: operands that are not channel-last in the accumulator's dtype are
copied so (`emitters`), a core with its accumulators in registers does the work (which one, `choose`
says), and the result is copied out if need be, of `direct` band by band.  All loops over memory
are parallel and vectorised; tile sizes follow the target (`machine`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as T

from relay_wgrad.argument_types import check_type
from relay_wgrad.graph.shared_tasks import threads_of, with_shared_tasks
from relay_wgrad.ir import FINISHED
from relay_wgrad.problem import ConvProblem

from ..kernel import Kernel, target_of
from . import volume
from .choose import choose, choose_volume
from .depthwise import volumes
from .direct import affine
from .direct.product import as_product
from .emitters.loops import argument, one_core
from .emitters.memory import Memory
from .machine import host_target, machine
from .wgrad import packed, unpacked

__all__ = ["host_target", "kernel", "prim_func"]

_DEEP = (affine.write, unpacked.write)
"""What writes kernels of three dimensions as well as of two."""


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
    return kernel(problem, target).func


def kernel(problem: ConvProblem, target: Target | str) -> Kernel:
    """`prim_func` with the name of the kernel chosen and the reason; raises as it does."""
    made = with_tasks(problem, target)
    return replace(made, func=with_shared_tasks(made.func, threads_of(_llvm(target))))


def with_tasks(problem: ConvProblem, target: Target | str) -> Kernel:
    """`kernel` whose parallel loops are TVM's, each thread with a run of tasks."""
    check_type("prim_func: problem", problem, ConvProblem, "a ConvProblem")
    problem.check()
    target = _llvm(target)
    sizes = (problem.c, *problem.spatial, problem.k, *problem.taps)
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"CPU kernels are for static sizes (the batch excepted): {problem}")
    is_volume = problem.rank == 3
    if is_volume and not problem.is_static:
        raise ValueError(f"CPU kernels of three dimensions are for a static batch: {problem}")
    m = machine(target)
    flat = volume.along_depth(problem) if is_volume else problem
    rows = flat is None and volumes.applies(problem, m)
    core = as_product(flat or volume.flattened(problem))
    whole = choose_volume(problem, m) if flat is None else None
    as_loop = flat is None and volume.has_deep_taps(problem, m)
    rule = whole or choose(core, m)
    if as_loop and rule.write is packed.write and not m.has_few_registers:
        rule = choose(replace(core, c=problem.c), m)  # of columns they are copies
    deep = whole is not None or (as_loop and rule.write in _DEEP)
    core = problem if deep else core

    def write_core(buffers: dict[str, Any]) -> None:
        memory = Memory(core, buffers, rule.reads or core.accum_dtype, m)
        rule.write(core, m, memory)
        memory.scratch.keep()

    with one_core(m.cores == 1), IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr(FINISHED)
        buffers = {
            role: argument(role, problem.dtype(role), problem.shape(role)) for role in problem.roles
        }
        if rows:
            volumes.write(problem, m, buffers)
        elif flat is None and not deep:
            volume.write(problem, m, buffers, write_core)
        else:
            write_core(buffers)
    if rows:
        return Kernel(builder.get(), volumes.NAME, volumes.REASON)
    name = rule.name if flat is not None else f"{volume.DEEP if deep else volume.NAME}, {rule.name}"
    return Kernel(builder.get(), name, rule.reason)


def _llvm(given: Target | str) -> Target:
    """The argument of `prim_func` as a target of kind llvm."""
    target = target_of(given)
    assert target is not None
    if str(target.kind.name) != "llvm":
        raise ValueError(
            f"prim_func: CPU kernels need a target of kind llvm, got {target.kind.name}"
        )
    return target
