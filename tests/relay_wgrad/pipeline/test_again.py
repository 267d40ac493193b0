"""Kernels that only move parameters' elements, and run twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline import again, fused_kernels
from relay_wgrad.pipeline.again import Again, best_twice, moves
from relay_wgrad.pipeline.arena import Arena
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.kernel_order import Step
from tests.support.compiled import virtual_machine
from tests.support.memory_plans import bindings, planned, storages

op = relax.op


def steps(small: int) -> tuple[list[Step], list[int]]:
    """A cast of 4 (and `small`), a use, a wide tensor of 16, its use, and the cast's second use."""
    made = [
        Step(frozenset(), frozenset(), (0, 1)),
        Step(frozenset([0]), frozenset([0, 1]), (2,)),
        Step(frozenset([1]), frozenset([2]), (3,)),
        Step(frozenset([2]), frozenset([3]), (4,)),
        Step(frozenset([0, 3]), frozenset([0, 4]), (5,)),
    ]
    return made, [4, small, 2, 16, 1, 1]


def test_the_most_that_is_alive_counts_what_is_made_twice() -> None:
    # 22 while the wide tensor is made; without the cast 18, and there is room once that is gone.
    found = best_twice(*steps(1), [0])
    assert found is not None
    assert (found.binding, found.place) == (0, 4)
    assert best_twice(*steps(1), []) is None
    made, sizes = steps(1)
    assert best_twice(made, [0, 0, *sizes[2:]], [0]) is None  # nothing to give up
    assert best_twice(made, [4, 40, *sizes[2:]], [0]) is None  # no room for the rest of it


def weights(emit: Any, w: Any) -> Any:
    """What is made of parameters is read early and late, and more is alive between."""
    half = emit(op.permute_dims(w))
    y = emit(op.nn.softmax(half))
    wide = emit(op.concat([emit(op.nn.softmax(y)) for _ in range(4)], 0))
    total = emit(op.sum(emit(op.nn.softmax(wide)), 0, keepdims=True))
    last = emit(op.nn.softmax(emit(op.add(emit(op.nn.softmax(emit(op.tanh(total)))), total))))
    return emit(op.matmul(last, half))


def module(body: Any = weights) -> tvm.IRModule:
    w = relax.Var("w", relax.TensorType((64, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [w]):
        with bb.dataflow():
            out = bb.emit_output(body(bb.emit, w))
        bb.emit_func_output(out)
    return bb.get()


def legalized(mod: tvm.IRModule) -> tvm.IRModule:
    with tvm.target.Target("llvm"):
        return relax.transform.LegalizeOps()(mod)


def called(mod: tvm.IRModule) -> list[str]:
    values = [b.value for b in bindings(mod["main"]) if op_name(b.value) == "relax.call_tir"]
    return [str(value.args[0].name_hint) for value in values]


def test_a_transposition_runs_again_where_there_is_room() -> None:
    before = legalized(module())
    after = Again()(before)
    relax.analysis.well_formed(after)  # raises
    assert called(before).count("transpose") == 1
    names = called(after)
    assert names.count("transpose") == 2
    assert names.index("transpose", 1) > names.index("concatenate")
    sizes = [sum(storages(Arena()(planned(mod))["main"])) for mod in (before, after)]
    assert sizes[1] < sizes[0]


def product(emit: Any, w: Any) -> Any:
    """As long as a product takes, it is not made twice."""
    first = emit(op.matmul(w, w))
    y = emit(op.nn.softmax(first))
    wide = emit(op.concat([emit(op.nn.softmax(y)) for _ in range(4)], 0))
    total = emit(op.sum(emit(op.nn.softmax(wide)), 0, keepdims=True))
    return emit(op.matmul(emit(op.nn.softmax(emit(op.tanh(total)))), first))


def test_what_sums_does_not_move() -> None:
    before = legalized(module(product))
    kernels = {str(var.name_hint): var for var, _ in before.functions_items()}
    assert not moves(before, kernels["matmul"])
    assert moves(before, kernels["concatenate"])
    assert not moves(before, relax.ExternFunc("relay_wgrad_cudnn_fprop"))
    tvm.ir.assert_structural_equal(Again()(before), before)


def test_bits_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((64, 64), "float32"))
    found = []
    for one in (again.Again, lambda: tvm.transform.Sequential([])):
        monkeypatch.setattr(fused_kernels, "Again", one)
        built = virtual_machine(module(), "llvm", cpu_pipeline())
        found.append(built["main"](given).numpy())
    assert np.array_equal(*found)
