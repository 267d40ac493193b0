"""Operands that a kernel does not read."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.pipeline.unread import Unread
from tests.support.memory_plans import bindings

op = relax.op


def pools(data: Any) -> tvm.IRModule:
    """An average pooling's gradient at a tensor that nothing else reads so late."""
    x = relax.Var("x", relax.TensorType(data, "float32"))
    dy = relax.Var("dy", relax.TensorType((*data[:2], 4, 4), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, dy]):
        with bb.dataflow():
            y = bb.emit(op.nn.softmax(x))
            given = bb.emit(op.nn.softmax(dy))
            dx = bb.emit(op.grad.avg_pool2d_backward(given, y, (2, 2), (2, 2)))
            out = [bb.emit_output(op.nn.softmax(each)) for each in (dx, y)]
        bb.emit_func_output(relax.Tuple(out))
    return bb.get()


def operands(mod: tvm.IRModule) -> dict[str, int]:
    calls = [b.value for b in bindings(mod["main"]) if op_name(b.value) == "relax.call_tir"]
    return {str(call.args[0].name_hint): len(call.args[1].fields) for call in calls}


def lowered(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [p for p in fused_kernels() if p.info.name != "relay_wgrad.Unread"]
    with tvm.target.Target("llvm"):
        return tvm.transform.Sequential(passes)(mod)


def test_a_gradient_does_not_keep_what_it_needs_no_element_of() -> None:
    before = lowered(pools((1, 2, 8, 8)))
    after = Unread()(before)
    relax.analysis.well_formed(after)  # raises
    pool = next(name for name in operands(before) if "avg_pool2d_backward" in name)
    assert operands(before)[pool] == 2
    assert operands(after)[pool] == 1
    others = {name: count for name, count in operands(before).items() if name != pool}
    assert {name: operands(after)[name] for name in others} == others


def test_a_size_that_the_run_knows_is_told_by_it() -> None:
    before = lowered(pools((tvm.tirx.Var("n", "int64"), 2, 8, 8)))
    tvm.ir.assert_structural_equal(Unread()(before), before)
