"""Storages that a virtual machine keeps."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.storages import KeepStorages


def planned(size: Any) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType((size, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = x
            for _ in range(4):
                y = bb.emit(relax.op.exp(relax.op.add(y, x)))
            out = bb.emit_output(relax.op.sum(y))
        bb.emit_func_output(out)
    passes = [
        relax.transform.LegalizeOps(), relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
    ]  # fmt: skip
    with tvm.target.Target("llvm"):
        return tvm.transform.Sequential(passes)(bb.get())


def storages(func: relax.Function) -> int:
    values = [b.value for block in func.body.blocks for b in block.bindings]
    return sum(
        isinstance(value, relax.Call) and op_name(value) == "relax.memory.alloc_storage"
        for value in values
    )


def test_a_function_takes_them_from_another() -> None:
    before = planned(3)
    after = KeepStorages()(before)
    assert storages(before["main"]) == storages(after["main_storages"]) == 2
    assert storages(after["main"]) == 0
    assert "get_cached_alloc" in after["main"].script()
    relax.analysis.well_formed(after)  # raises


def test_sizes_that_only_the_run_knows_stay() -> None:
    before = planned(tvm.tirx.Var("n", "int64"))
    assert storages(before["main"])
    tvm.ir.assert_structural_equal(KeepStorages()(before), before)


@pytest.mark.parametrize("keep", [False, True])
def test_in_the_pipeline(keep: bool) -> None:
    x = relax.Var("x", relax.TensorType((8, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            total = bb.emit(relax.op.sum(x, axis=1, keepdims=True))
            out = bb.emit_output(relax.op.sum(relax.op.multiply(x, total), axis=0))
        bb.emit_func_output(out)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    with target:
        lowered = cuda_pipeline(keep_memory=keep)(bb.get())
    names = {var.name_hint for var in lowered.get_global_vars()}
    assert ("main_storages" in names) is keep
