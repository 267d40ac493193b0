"""FLegalize for pipelines that are not ours: no pass of theirs comes later to mend a reduction.

On a CPU, where TVM's own pipeline leaves loops as they are, a kernel that may reduce nothing gets
its first values as it is made (`relay_wgrad.pipeline.reduction_init`).  On other targets schedules
of TVM's know one form of reductions, and it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from relay_wgrad.pipeline.reduction_init import with_first_values
from relay_wgrad.pipeline.targets import llvm_target


def for_foreign_pipeline(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule, with kernels that are right over nothing without more passes."""

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return rule(bb if llvm_target() is None else _Builder(bb), call)

    return legalize


class _Builder:
    """A BlockBuilder that adds kernels so."""

    call_te, emit_te = relax.BlockBuilder.call_te, relax.BlockBuilder.emit_te

    def __init__(self, bb: relax.BlockBuilder) -> None:
        self._bb = bb

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bb, name)

    def add_func(self, func: Any, name: str) -> relax.GlobalVar:
        """As BlockBuilder's."""
        is_kernel = isinstance(func, tvm.tirx.PrimFunc)
        return self._bb.add_func(with_first_values(func) if is_kernel else func, name)
