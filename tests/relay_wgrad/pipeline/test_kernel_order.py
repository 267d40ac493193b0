"""The order of kernels, by the memory that they free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, te, tirx, topi

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.pipeline.kernel_order import (
    Order,
    Step,
    memory_saving_order,
    most_alive,
    order_within,
)
from tests.support.compiled import virtual_machine

ROWS = 1024


@st.composite
def graphs(draw: Any) -> tuple[list[Step], list[int]]:
    """Steps in an order that is right, and their tensors' sizes."""
    steps: list[Step] = []
    owner: list[int] = []
    for i in range(draw(st.integers(0, 25))):
        read = draw(st.frozensets(st.integers(0, max(0, len(owner) - 1)), max_size=3))
        reads = read if owner else frozenset()
        makes = range(len(owner), len(owner) + draw(st.integers(0, 2)))
        steps.append(Step(frozenset(owner[t] for t in reads), reads, tuple(makes)))
        owner += [i] * len(makes)
    sizes = draw(st.lists(st.integers(0, 9), min_size=len(owner), max_size=len(owner)))
    return steps, sizes


def slowly(steps: list[Step], sizes: list[int], order: list[int]) -> int:
    """`most_alive`, of each place anew."""
    made = {t: at for at, i in enumerate(order) for t in steps[i].makes}
    last = made | {t: at for at, i in enumerate(order) for t in steps[i].reads}
    return max(
        (sum(sizes[t] for t in made if made[t] <= at <= last[t]) for at in range(len(order))),
        default=0,
    )


@given(graphs())
def test_every_step_comes_once_and_after_what_it_needs(graph: Any) -> None:
    steps, sizes = graph
    order = memory_saving_order(steps, sizes)
    assert sorted(order) == list(range(len(steps)))
    place = {i: at for at, i in enumerate(order)}
    assert all(place[needed] < place[i] for i, step in enumerate(steps) for needed in step.needs)
    assert most_alive(steps, sizes, order) == slowly(steps, sizes, order)


@given(graphs(), st.floats(0, 1.2))
def test_steps_wait_where_too_much_would_be_alive(graph: Any, share: float) -> None:
    steps, sizes = graph
    before = list(range(len(steps)))
    most = most_alive(steps, sizes, before)
    limit = int(share * most)
    order = order_within(steps, sizes, before, limit)
    if share >= 1:
        assert order == before
    if order is None:
        return
    assert sorted(order) == before
    place = {i: at for at, i in enumerate(order)}
    assert all(place[needed] < place[i] for i, step in enumerate(steps) for needed in step.needs)
    assert most_alive(steps, sizes, order) <= limit


def test_a_part_waits_until_the_other_is_read() -> None:
    """A whole of 8 in two parts of 4, each of which makes 1 of a part."""
    whole = Step(frozenset(), frozenset(), (0,))
    parts = [Step(frozenset([0]), frozenset([0]), (made,)) for made in (1, 2)]
    ends = [Step(frozenset([made]), frozenset([made]), (made + 2,)) for made in (1, 2)]
    steps, sizes = [whole, *parts, *ends], [8, 4, 4, 1, 1]
    assert most_alive(steps, sizes, memory_saving_order(steps, sizes)) == 16
    assert order_within(steps, sizes, range(5), 13) == [0, 1, 3, 2, 4]
    assert order_within(steps, sizes, range(5), 12) is None


def layers(late: bool, count: int = 6) -> tvm.IRModule:
    """A chain, and a row of each of its results: right after it, or all at the end."""
    x = relax.Var("x", relax.TensorType((ROWS, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y, rows, waiting = x, [], []
            for _ in range(count):
                y = bb.emit(relax.op.nn.softmax(y))
                waiting.append(y)
                if not late:
                    rows.append(bb.emit(relax.op.sum(waiting.pop(), 0)))
            rows += [bb.emit(relax.op.sum(value, 0)) for value in waiting]
            out = [bb.emit_output(relax.op.add(row, rows[0])) for row in rows]
        bb.emit_func_output(relax.Tuple(out))
    return bb.get()


def kernels(mod: tvm.IRModule) -> list[str]:
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [v.args[0].name_hint for v in values if op_name(v) == "relax.call_tir"]


def lowered(mod: tvm.IRModule, ordered: bool) -> tvm.IRModule:
    passes = [p for p in fused_kernels() if ordered or p.info.name != "relay_wgrad.Order"]
    with tvm.target.Target("llvm"):
        return tvm.transform.Sequential(passes)(mod)


def test_sums_do_not_wait_for_each_other() -> None:
    before, after = (lowered(layers(late=True), ordered) for ordered in (False, True))
    assert kernels(before)[:12] == ["softmax"] * 6 + ["sum"] * 6
    assert kernels(after)[:5] == ["softmax", "softmax", "sum", "softmax", "sum"]
    relax.analysis.well_formed(after)  # raises


def test_an_order_that_is_as_good_stays() -> None:
    before = lowered(layers(late=False), False)
    tvm.ir.assert_structural_equal(Order()(before), before)


def test_other_calls_stay_where_they_are() -> None:
    """Of those nobody knows what else they write."""
    x = relax.Var("x", relax.TensorType((ROWS, 64), "float32"))
    mod = lowered(layers(late=True), False)
    func = mod["main"]
    (block,) = func.body.blocks
    called = relax.Call(relax.ExternFunc("other"), [func.params[0]], ty_args=[x.ty])
    relax.expr._update_type(called, x.ty)
    other = relax.VarBinding(relax.DataflowVar("other", x.ty), called)
    body = relax.SeqExpr([relax.DataflowBlock([*block.bindings, other])], func.body.body)
    relax.expr._update_type(body, func.body.ty)
    mod.update_func(
        mod.get_global_var("main"),
        relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs),
    )
    tvm.ir.assert_structural_equal(Order()(mod), mod)


def test_a_length_is_known_before_what_has_it() -> None:
    """A kernel whose result is as long as a cast says frees memory, but cannot come before it."""
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((ROWS,), "float32"))
    given = relax.Var("given", relax.TensorType(dtype="float32", ndim=1))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, given]):
        with bb.dataflow():
            y = bb.emit_te(topi.exp, x)
            cast = bb.match_cast(given, relax.TensorType((n,), "float32"))
            first = bb.emit(bb.call_te(lambda y: te.compute((n,), lambda i: y[0]), y))
            others = [bb.emit_te(topi.exp, x) for _ in range(4)]
            rows = [bb.emit_te(topi.sum, other) for other in others]
            out = [bb.emit_output(v) for v in (bb.emit_te(topi.add, first, cast), *rows)]
        bb.emit_func_output(relax.Tuple(out))
    before = bb.get()
    after = Order()(before)
    assert kernels(after) != kernels(before)
    relax.analysis.well_formed(after)  # raises


@pytest.mark.parametrize("late", [True, False])
def test_results_are_the_same_bits(late: bool) -> None:
    x = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((ROWS, 64), "float32"))
    found = []
    for ordered in (False, True):
        built = virtual_machine(lowered(layers(late), ordered))
        found.append([t.numpy() for t in built["main"](x)])
    assert all(map(np.array_equal, *found))
