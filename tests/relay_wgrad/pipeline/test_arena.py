"""Intermediate results as places in one block of memory."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline import cpu
from relay_wgrad.pipeline.arena import Arena, lifetimes
from relay_wgrad.pipeline.storages import KeepStorages, is_moved
from tests.support.memory_plans import (
    ROWS,
    Machine,
    bindings,
    memory_is_kept,
    network,
    planned,
    run,
    same,
    storages,
)


@pytest.mark.parametrize("seed", range(12))
def test_nobody_writes_on_what_is_still_read(seed: int) -> None:
    before = planned(network(seed))
    mod = Arena()(before)
    after = mod["main"]
    relax.analysis.well_formed(after)  # raises
    machine = Machine(after, mod)
    (flat,), (joined, picked, x) = machine.results
    own = [result[1] for result in (flat, joined, picked)]
    assert all(own), "a result lies in the function's memory"
    assert x is None
    assert sum(storages(after)) <= sum(storages(before["main"]))


def test_of_all_seeds_most_get_smaller() -> None:
    pairs = [(m["main"], Arena()(m)["main"]) for m in (planned(network(i)) for i in range(12))]
    assert sum(sum(storages(b)) < sum(storages(a)) for a, b in pairs) >= 6
    assert any(
        len(storages(b)) == 1 and any(is_moved(x.value) for x in bindings(b)) for _, b in pairs
    )


def test_a_use_through_a_tuple_and_a_view_keeps_a_tensor_alive() -> None:
    x = relax.Var("x", relax.TensorType((ROWS, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            first = bb.emit(relax.op.tanh(x))
            pair = bb.emit(relax.Tuple([first, x]))
            seen = bb.emit(relax.op.reshape(bb.emit(relax.TupleGetItem(pair, 0)), (64 * ROWS,)))
            y = x
            for _ in range(3):
                y = bb.emit(relax.op.tanh(y))
            y = bb.emit(relax.op.reshape(y, (64 * ROWS,)))
            out = bb.emit_output(relax.op.add(seen, y))
        bb.emit_func_output(out)
    tensors = lifetimes(planned(bb.get())["main"])
    assert tensors[0].last == max(t.last for t in tensors)
    assert [t.size for t in tensors] == [4 * 64 * ROWS] * 4


def test_functions_with_branches_stay() -> None:
    x = relax.Var("x", relax.TensorType((ROWS, 64), "float32"))
    which = relax.Var("which", relax.TensorType((), "bool"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, which]):
        y = bb.emit(relax.op.tanh(bb.emit(relax.op.tanh(x))))
        chosen = bb.emit(relax.If(which, relax.SeqExpr([], y), relax.SeqExpr([], x)))
        bb.emit_func_output(bb.emit(relax.op.add(chosen, x)))
    before = planned(bb.get())
    assert lifetimes(before["main"]) == []
    tvm.ir.assert_structural_equal(Arena()(before), before)


def test_results_are_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    module = network(3)
    ours = run(module)
    monkeypatch.setattr(cpu, "with_arena", list)
    assert same(ours, run(module))


def test_memory_that_is_kept_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    module = network(3)
    ours = run(module)
    with memory_is_kept(monkeypatch) as made:
        assert same(ours, run(module))
    assert len(made) == 1


def test_tensors_are_kept_with_their_storages() -> None:
    after = KeepStorages()(Arena()(planned(network(3))))
    relax.analysis.well_formed(after)  # raises
    assert storages(after["main_storages"])
    names = [op_name(b.value) for b in bindings(after["main"])]
    assert "relax.memory.alloc_tensor" not in names
    assert not any(is_moved(b.value) for b in bindings(after["main"]))
