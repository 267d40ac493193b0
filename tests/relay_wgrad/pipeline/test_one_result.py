"""A kernel for each result, where results have nothing in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline.one_result import OneResult
from tests.support.compiled import virtual_machine
from tests.support.memory_plans import bindings

op = relax.op


def module(compute: Any, count: int = 2, whole: bool = False) -> tvm.IRModule:
    """What gives several results, each of which is read; the tuple too, if it is."""
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            made = bb.emit(compute(bb, x))
            parts = [bb.emit(relax.TupleGetItem(made, i)) for i in range(count)]
            out = [bb.emit_output(op.exp(part)) for part in parts]
            out += [bb.emit_output(made)] if whole else []
        bb.emit_func_output(relax.Tuple(out))
    with tvm.target.Target("llvm"):
        return relax.transform.LegalizeOps()(bb.get())


def split(bb: Any, x: Any) -> Any:
    return op.split(x, 3, 1)


def common(bb: Any, x: Any) -> Any:
    """Both results are made of one tensor that is made before."""

    def both(x: Any) -> Any:
        middle = te.compute((4, 6), lambda i, j: x[i, j] * 2.0, name="middle")
        more = te.compute((4, 6), lambda i, j: middle[i, j] + 1.0, name="more")
        return [more, te.compute((4, 6), lambda i, j: middle[i, j] - 1.0, name="less")]

    return bb.call_te(both, x)


def called(mod: tvm.IRModule) -> list[str]:
    values = [b.value for b in bindings(mod["main"]) if op_name(b.value) == "relax.call_tir"]
    return [str(value.args[0].name_hint) for value in values]


@pytest.mark.parametrize("whole", [False, True])
def test_parts_of_a_whole_are_kernels(whole: bool) -> None:
    before = module(split, 3, whole)
    after = OneResult()(before)
    relax.analysis.well_formed(after)  # raises
    assert called(after)[:3] == ["split_0", "split_1", "split_2"]
    assert all(len(after[name].params) == 2 for name in called(after)[:3])
    given = tvm.runtime.tensor(np.arange(24, dtype="float32").reshape(4, 6) / 24)
    found = []
    for mod in (before, after):
        made = virtual_machine(mod)["main"](given)
        flat = [*list(made)[:3], *(list(made[3]) if whole else [])]
        found.append([t.numpy() for t in flat])
    assert len(found[0]) == (6 if whole else 3)
    assert all(map(np.array_equal, *found))


def test_results_of_one_tensor_stay() -> None:
    before = module(common)
    tvm.ir.assert_structural_equal(OneResult()(before), before)


def test_a_name_that_is_there_is_not_taken() -> None:
    before = module(split, 3)
    kernel = next(f for var, f in before.functions_items() if var.name_hint == "tir_exp")
    before[tvm.ir.GlobalVar("split_1")] = kernel
    after = OneResult()(before)
    assert called(after)[:3] == ["split_0", "split_1_", "split_2"]
