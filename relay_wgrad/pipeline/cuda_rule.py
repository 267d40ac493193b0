"""What the schedule rules for CUDA have in common."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, dlight
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.target import Target


class CudaRule(dlight.base.ScheduleRule):
    """A rule for kernels whose loops can be told into spatial ones and sums."""

    def apply(self, func: Any, target: Target, tunable: bool) -> Any:
        """The schedule, or None for another kind of function, or target."""
        if not isinstance(func, tirx.PrimFunc) or target.kind.name != "cuda":
            return None
        # What cannot be done is tried often, and nobody reads why: that prints the whole kernel.
        sch = Schedule(func, error_render_level="none")
        infos = normalize_prim_func(sch)
        return None if infos is None else self.scheduled(sch, infos)

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The same, of a schedule whose blocks are normalized, in order."""
        raise NotImplementedError

    def bind(self, sch: Schedule, loop: Any, axis: str) -> None:
        """Binds a loop to threads."""
        sch.bind(loop, axis)
