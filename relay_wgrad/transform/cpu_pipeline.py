"""A Relax pipeline for CPUs that runs a training graph's other kernels on all cores.

Upstream's schedules nothing on a CPU: whatever is no convolution of ours runs in one thread, and a
sum over pixels walks through channel-last memory from line to line.  Here each block of loops that
nobody has scheduled becomes parallel over its results, and a sum over the outer axes of a tensor
keeps its innermost axis inside; a sum along that axis is a vector of partial sums, added up at the
end.  No order of terms depends on the number of threads, so results do not either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.base import try_inline
from tvm.target import Target

from .fused_kernels import fused_kernels

_SCHEDULED = "tirx.is_scheduled"
# Scalar operations that are worth waking other threads for; elements of an inner loop, at least.
_WORTH, _INNER = 1 << 14, 32
# Channels that a task sums at a time: some cache lines of each pixel.
_CHANNELS = 64


def cpu_pipeline() -> Callable[..., tvm.IRModule]:
    """The pipeline, for `tvm.compile(mod, target, relax_pipeline=cpu_pipeline())`.

    It is upstream's with a fusion of our own (`fused_kernels`) and a schedule for what that leaves.
    A kernel that the schedule does not fit stays as upstream makes it.
    """
    from tvm.relax.backend.cpu_generic.pipeline import (
        dataflow_lower_passes,
        finalize_passes,
        library_dispatch_passes,
    )

    @tvm.transform.module_pass(opt_level=0, name="relay_wgrad.cpu_pipeline")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        target = Target.current(allow_none=False)
        passes = [
            *library_dispatch_passes(target),
            *fused_kernels(),
            parallel_kernels(),
            *dataflow_lower_passes(target),
            *finalize_passes(target),
        ]
        return tvm.transform.Sequential(passes)(mod)

    return run


def parallel_kernels() -> tvm.transform.Pass:
    """Schedules every kernel of a module that is not marked as scheduled."""

    @tvm.transform.module_pass(opt_level=0, name="relay_wgrad.parallel_kernels")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        cores = int(Target.current(allow_none=False).attrs.get("num-cores", 0)) or 8
        if cores == 1:
            return mod
        new = {
            var: scheduled(func, cores)
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and not (func.attrs and func.attrs.get(_SCHEDULED))
        }
        mod = mod.clone() if new else mod
        for var, func in new.items():
            mod.update_func(var, func)
        return mod

    return run


def scheduled(func: tirx.PrimFunc, cores: int) -> tirx.PrimFunc:
    """The kernel with parallel loops, or as it was if its form is unknown."""
    try:
        sch = s_tir.Schedule(func)
        infos = normalize_prim_func(sch)
        if not infos:
            return func
        for info in try_inline(sch, infos):
            _block(sch, info, cores)
    except (s_tir.ScheduleError, tvm.error.InternalError, AssertionError, ValueError):
        return func
    return sch.mod["main"].with_attr(_SCHEDULED, True)


def _extent(sch: s_tir.Schedule, loop: Any) -> int | None:
    """A loop's length, if it is known."""
    extent = sch.get(loop).extent
    return int(extent) if isinstance(extent, (int, tirx.IntImm)) else None


def _block(sch: s_tir.Schedule, info: Any, cores: int) -> None:
    block, loops, kinds = info.block_rv, sch.get_loops(info.block_rv), info.dom_kind()
    if len(loops) != len(kinds) or set(kinds) - {"S", "R"}:
        return
    lengths = {loop: _extent(sch, loop) for loop in loops}
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    known = [x for x in lengths.values() if x is not None]
    if not spatial or (len(known) == len(loops) and math.prod(known) < _WORTH):
        return
    if reduced:
        sch.reorder(*spatial, *reduced)
        last, length = _innermost(sch, info), lengths[spatial[-1]]
        if last == "S" and length is not None:
            _sum_of_rows(sch, block, spatial, reduced, length, cores)
        elif last == "R" and all(lengths[loop] is not None for loop in reduced):
            _sums_of_rows(sch, block, spatial, reduced, lengths)
        else:
            sch.parallel(_fused(sch, spatial))
        return
    # Some inner loops stay, long enough for vectors.
    inner, length = len(spatial) - 1, lengths[spatial[-1]]
    while inner > 1 and length is not None and length < _INNER:
        inner -= 1
        shorter = lengths[spatial[inner]]
        length = None if shorter is None else length * shorter
    if inner == 0:  # one axis
        outer, _ = sch.split(spatial[0], [None, _WORTH // 4])
        sch.parallel(outer)
        return
    if length is not None and len(spatial) - inner > 1:
        sch.fuse(*spatial[inner:])
    sch.parallel(_fused(sch, spatial[:inner]))


def _fused(sch: s_tir.Schedule, loops: list[Any]) -> Any:
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def _innermost(sch: s_tir.Schedule, info: Any) -> str:
    """What walks along the last axis of the largest tensor that is read: "S" for the last axis of
    the result, "R" for the last that is summed over, else nothing."""
    block = sch.get(info.block_rv)

    def size(region: Any) -> int:
        return math.prod(int(x) for x in region.source.shape if isinstance(x, tirx.IntImm))

    largest = max(block.reads, key=size, default=None)
    if largest is None or not largest.region:
        return ""
    for kind, name in ((tirx.IterVar.DataPar, "S"), (tirx.IterVar.CommReduce, "R")):
        of_kind = [v.var for v in block.iter_vars if v.iter_type == kind]
        if of_kind and largest.region[-1].min.same_as(of_kind[-1]):
            return name
    return ""


def _sum_of_rows(
    sch: s_tir.Schedule, block: Any, spatial: list[Any], reduced: list[Any], last: int, cores: int
) -> None:
    """Tasks own some neighbours along the innermost axis and walk over all rows."""
    wanted = max(1, min(_CHANNELS, last // cores))
    width = next(x for x in range(wanted, 0, -1) if last % x == 0)
    outer, inner = sch.split(spatial[-1], [None, width])
    sch.reorder(*spatial[:-1], outer, *reduced, inner)
    sch.parallel(_fused(sch, [*spatial[:-1], outer]))
    sch.decompose_reduction(block, reduced[0])


def _sums_of_rows(
    sch: s_tir.Schedule, block: Any, spatial: list[Any], reduced: list[Any],
    lengths: dict[Any, int | None],
) -> None:  # fmt: skip
    """A vector of partial sums for each result, added up at the end."""
    last = [reduced.pop()]
    while reduced and math.prod(lengths[x] or 1 for x in last) < _CHANNELS:
        last.insert(0, reduced.pop())
    length = math.prod(lengths[x] or 1 for x in last)
    width = next(x for x in range(_CHANNELS, 0, -1) if length % x == 0)
    _, columns = sch.split(_fused(sch, last), [None, width])
    parts = sch.rfactor(columns, len(spatial))
    loops = sch.get_loops(parts)
    sch.parallel(_fused(sch, loops[: len(spatial)]))
    sch.decompose_reduction(parts, loops[len(spatial)])
    sch.parallel(_fused(sch, sch.get_loops(block)[: len(spatial)]))
