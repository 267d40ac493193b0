"""A Relax pipeline for CUDA that compiles whole training graphs.

Upstream's own stops at the first kernel that one of its schedule rules trips over, and gradients
have such kernels: a sum over everything, the window reductions of pooling.  Here a rule that fails
leaves the kernel to the next one; the last, upstream's fallback, takes any kernel.  Rules of our
own for sums over pixels (`cuda_reduction`), images (`cuda_images`) and blocks of them
(`cuda_depth`) come first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.relax.transform import DeadCodeElimination
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.target import Target

from .cuda_depth import SpaceToDepth
from .cuda_images import Images
from .cuda_joins import Joins
from .cuda_packs import Packs
from .cuda_reduction import ChannelSum, Registers, Windows
from .cuda_rows import RowSum
from .empty_tensors import Nothing
from .fused_kernels import fused_kernels
from .half_scans import HalfScans
from .ieee import exact_floats
from .last_passes import with_arena
from .made_sums import MadeSum
from .reduction_init import first_values
from .reshapes import Reshapes, with_reshapes
from .workspaces import Workspaces

# What rules raise of a kernel that they did not expect; a loop's length that is no number has no
# `.value`.
_NOT_THIS = (AssertionError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)


class _Careful(dlight.base.ScheduleRule):
    """A schedule rule whose failure means: not this kernel."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule

    def apply(self, func: Any, target: Any, tunable: bool) -> Any:
        """The rule's schedule, or None."""
        try:
            return self.rule.apply(func, target, tunable)
        except _NOT_THIS:
            return None


# Of these upstream's rule for matrix products makes tensor-core instructions.
_ON_TENSOR_CORES = ("float16", "int8")


class _CudaCores(dlight.base.ScheduleRule):
    """A schedule rule that never sees a sum over tensors for which it would use tensor cores.

    From some sizes on TVM's `Tensorize` crashes the process then, which nothing here could catch,
    and the first time all of its instructions are parsed, which takes minutes.  Products that are
    legalized by `legalize.half_reductions` read a widened copy, so the rule takes them.
    """

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule

    def apply(self, func: Any, target: Any, tunable: bool) -> Any:
        """The rule's schedule, or None."""
        return None if _is_for_tensor_cores(func) else self.rule.apply(func, target, tunable)


def _is_for_tensor_cores(func: Any) -> bool:
    if not isinstance(func, tirx.PrimFunc):
        return False
    sch = s_tir.Schedule(func)
    infos = normalize_prim_func(sch)
    if infos is None:  # another form, of which nothing is known
        return True
    sums = [sch.get(info.block_rv) for info in infos if "R" in info.dom_kind()]
    return any(str(read.source.dtype) in _ON_TENSOR_CORES for block in sums for read in block.reads)


def cuda_pipeline(*, keep_memory: bool = False) -> Callable[..., tvm.IRModule]:
    """The pipeline, for `tvm.compile(mod, target, relax_pipeline=cuda_pipeline())`.

    It is upstream's but for its care and for legalization and fusion (`fused_kernels`).

    keep_memory : a virtual machine keeps the memory of intermediate results from call to call,
        which a captured CUDA graph needs (`relay_wgrad.training.capture`).
    """
    from tvm.relax.backend.cuda.pipeline import (
        dataflow_lower_passes,
        finalize_passes,
        library_dispatch_passes,
    )

    gpu = dlight.gpu
    rules = [
        SpaceToDepth(), Images(), Joins(), Packs(), MadeSum(), ChannelSum(), RowSum(),
        _CudaCores(gpu.Matmul()), Windows(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(),
        Registers(), gpu.Fallback(),
    ]  # fmt: skip

    @tvm.transform.module_pass(opt_level=0, name="relay_wgrad.cuda_pipeline")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        target = Target.current(allow_none=False)
        passes = [
            Nothing(),
            HalfScans(),
            *library_dispatch_passes(target),
            *fused_kernels(),
            # As views, while upstream's analysis can still tell: a schedule of packs hides it.
            Reshapes(),
            DeadCodeElimination(),
            dlight.ApplyDefaultSchedule(*map(_Careful, rules)),
            first_values(),
            exact_floats(cuda=True),
            Workspaces(),
            *with_reshapes(dataflow_lower_passes(target)),
            *with_arena(finalize_passes(target), keep=keep_memory),
        ]
        return tvm.transform.Sequential(passes)(mod)

    return run
