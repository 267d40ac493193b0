"""Schedule rules for CUDA applied to functions of small programs, and their loops on this CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from relay_wgrad.pipeline.cuda_rule import CudaRule
from tests.support.partition_cases import module

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})


def on_the_host(rule: type[CudaRule]) -> CudaRule:
    """The rule with the same loops, none of them bound to threads."""

    def bind(self: CudaRule, sch: Any, loop: Any, axis: str) -> None:
        """Leaves it."""

    return type(rule.__name__, (rule,), {"bind": bind})()


def functions(shapes: dict[str, Any], body: Any, dtype: str = "float32") -> dict[str, Any]:
    mod = module({name: (shape, dtype) for name, shape in shapes.items()}, body)
    passes = [
        relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(), relax.transform.FuseTIR(),
    ]  # fmt: skip
    with CUDA:
        mod = tvm.transform.Sequential(passes)(mod)
    return {
        str(gv.name_hint): func
        for gv, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def run(
    schedule: Any, arrays: list[np.ndarray], shape: tuple[int, ...], dtype: Any = None
) -> np.ndarray:
    func = schedule.mod["main"].with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": func}), target="llvm")
    out = np.full(shape, np.nan, dtype or arrays[0].dtype)
    args = [tvm.runtime.tensor(a) for a in [*arrays, out]]
    built["main"](*args)
    return np.asarray(args[-1].numpy())
