"""Storages that a virtual machine keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.storages import KeepStorages, LetGo
from tests.support.compiled import virtual_machine


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


@pytest.mark.parametrize("name", ["main", "nothing"])
def test_a_call_has_the_memory_of_results_that_nobody_holds(name: str) -> None:
    """A machine keeps what it returned: without `LetGo` two sets of results take turns."""
    x = relax.Var("x", relax.TensorType((512, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function(name, [x]):
        with bb.dataflow():
            out = [bb.emit_output(relax.op.exp(x)), bb.emit_output(relax.op.tanh(x))]
        bb.emit_func_output(relax.Tuple(out))
    machine = virtual_machine(bb.get(), "llvm", cpu_pipeline())
    given = tvm.runtime.tensor(np.linspace(-1, 1, 512 * 64, dtype="float32").reshape(512, 64))

    def places() -> list[int]:
        return [result.data_ptr() for result in machine[name](given)]

    first = places()
    assert [sorted(places()) for _ in range(3)] == [sorted(first)] * 3
    held = machine[name](given)
    before = held[0].numpy()
    assert not set(places()) & {result.data_ptr() for result in held}
    assert np.array_equal(held[0].numpy(), before)


def test_only_functions_that_others_call_begin_so() -> None:
    before = planned(3)
    after = LetGo()(KeepStorages()(before))
    relax.analysis.well_formed(after)  # raises
    text = after["main"].script()
    assert text.count("invoke_closure") == 1
    assert "invoke_closure" not in after["main_storages"].script()
    tvm.ir.assert_structural_equal(LetGo()(tvm.IRModule()), tvm.IRModule())
