"""Normalizations that write into joined tensors: which do, what they compute, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from tvm import relax

from byoc_cudnn.codegen.lowering import lower
from byoc_cudnn.joins.lower import lower_joins
from byoc_cudnn.joins.lower import planned as joins
from byoc_cudnn.norm import NormCall
from byoc_cudnn.norm.lower import in_joins, lower_norms
from byoc_cudnn.norm.lower import planned as norms
from byoc_cudnn.pool.lower import planned as pools
from relay_wgrad.graph.rebuild import with_functions, without_unused
from relay_wgrad.pipeline.joined import joined_once
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.transform import grad
from tests.support import joins as joins_support
from tests.support import norm_packed, pool_packed
from tests.support.norm_net import Net, run, step

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op


def levels(net: Net) -> Any:
    """A U-Net's: what is pooled is joined with what comes up."""
    left = net.norm(net.conv(net.x))
    low = net.norm(net.conv(net.pool(left)))
    up = net.bb.emit(op.concat([net.bb.emit(op.concat([low, low], 2)) for _ in range(2)], 1))
    return net.total(net.conv(net.join(left, net.conv(up))))


def branches(net: Net) -> Any:
    """Inception's: all that is joined are normalizations, one with a residual."""
    first = net.norm(net.conv(net.x))
    second = net.norm(net.conv(net.x, 32), "")
    third = net.norm(net.conv(net.x), "relu", net.conv(net.x))
    return net.total(net.conv(net.join(second, third, first)))


def chain(net: Net) -> Any:
    """VoVNet's: each is the next one's input too, and then joined; the last is joined alone."""
    first = net.norm(net.conv(net.x))
    second = net.norm(net.conv(first))
    third = net.norm(net.conv(second))
    return net.total(net.conv(net.join(net.x, first, second, third)))


def twice(net: Net) -> Any:
    """Two joins of one result, of which a sum with a cut is made too."""
    first = net.norm(net.conv(net.x))
    cut = net.bb.emit(op.split(net.conv(net.x, 32), [16], 3))
    part, rest = (net.bb.emit(relax.TupleGetItem(cut, i)) for i in range(2))
    second = net.norm(net.conv(net.bb.emit(op.add(first, part))))
    one, two = net.join(first, second, rest), net.join(net.conv(second), first)
    return net.total(net.conv(one), net.conv(two))


def dense(net: Net) -> Any:
    """DenseNet's: each layer has all before it, which its normalization reads in one tensor; what
    comes first is read there backward, and one layer's own is joined by a sum besides."""
    known = [net.norm(net.conv(net.x)), net.conv(net.x, 32)]
    second = net.norm(known[1])
    for _ in range(3):
        known.append(net.conv(net.norm(net.join(*known)), 16))
    last = net.norm(net.join(*known), "")
    more = net.norm(net.bb.emit(op.add(known[2], known[3])))
    return net.total(net.conv(last), net.conv(more), net.conv(second))


def nested(net: Net) -> Any:
    """The same written as joins of joins; the last of all is a convolution's too."""
    x = net.join(net.conv(net.x), net.x)
    for _ in range(3):
        x = net.join(x, net.conv(net.norm(x), 8))
    return net.total(net.conv(x))


def read_otherwise(net: Net) -> Any:
    """Joins that grow, but a convolution reads each: they stay."""
    known = [net.conv(net.x), net.conv(net.x)]
    for _ in range(2):
        joined = net.join(*known)
        known.append(net.bb.emit(op.add(net.conv(net.norm(joined)), net.conv(joined))))
    return net.total(net.conv(net.join(*known)))


def narrow(net: Net) -> Any:
    """Channels of no whole packs, and too few of them."""
    parts = [net.norm(net.conv(net.x, n)) for n in (6, 10, 8)]
    return net.total(net.conv(net.join(*parts)))


NETS = {
    levels: [((0, 32), False, False)],
    branches: [((48, 64), False, False), ((0, 64), True, False), ((32, 64), True, False)],
    chain: [((16, 64), False, True), ((32, 64), True, True), ((48, 64), True, False)],
    twice: [((0, 48), False, True), ((16, 48), True, True)],
    narrow: [],
    dense: [((0, 96), False, False)] * 2 + [((16, 96), False, False)],
    nested: [((0, 56), False, False)] * 2,
    read_otherwise: [],
}


def lowered(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[NormCall], list[Any]]:
    """With stand-ins for the generated functions, and the calls that there are of each family."""
    families = [norm_packed.recorder(), pool_packed.recorder(), joins_support.recorder()]
    plans = [(norms, in_joins), (pools, None), (joins, None)]
    for family, (plan, then) in zip(families, plans, strict=True):
        if plan is joins:
            mod = joined_once(with_functions(mod, lambda _, func: without_unused(func)))
        mod, _ = lower(mod, family, plan, 90, then)  # type: ignore[arg-type]
        relax.analysis.well_formed(mod)
        family.register()
    return mod.without_attr("external_mods"), families[0].calls, families


@pytest.mark.parametrize("build", NETS, ids=lambda build: build.__name__)
def test_a_step_is_what_it_was(build: Callable[[Net], Any]) -> None:
    """By the plan that lays all in one place, and by TVM's, which does not."""
    before = step(build)
    after, calls, _ = lowered(before)
    placed = [(c.place or c.within, c.onto, c.own) for c in calls if c.place or c.within]
    assert placed == NETS[build]
    want = run(before)
    for pipeline in (None, relax.get_pipeline("default")):
        for got, right in zip(run(after, pipeline), want, strict=True):
            assert np.linalg.norm(got - right) < 2e-5 * max(float(np.linalg.norm(right)), 1)


PLACES = {levels: 1, branches: 2, chain: 3, twice: 2, dense: 3, nested: 3}


@pytest.mark.parametrize("build", PLACES, ids=lambda build: build.__name__)
def test_what_is_joined_has_one_place(build: Callable[[Net], Any]) -> None:
    """Each call's result lies where the operand does that has what is joined so far."""
    after, _, families = lowered(step(build))
    found: dict[str, set[bool]] = {}
    for family in families:
        for call in family.calls:
            if pairs := family.overwrites_of(call):
                _watch(call.symbol, pairs[:1], found)
    run(after)
    first = {call.symbol for call in families[0].calls if call.onto}
    joined = [call for call in families[2].calls if call.overwrites]
    assert len(first) + len(joined) == PLACES[build]
    assert all(found[symbol] == {True} for symbol in (*first, *(c.symbol for c in joined)))


def _watch(symbol: str, pairs: Any, found: dict[str, set[bool]]) -> None:
    """Notes of a function's calls whether results lie where operands do."""
    inner = tvm_ffi.get_global_func(symbol)

    def run(*tensors: Any) -> None:
        at = [torch.from_dlpack(tensor).data_ptr() for tensor in tensors]
        found.setdefault(symbol, set()).update(at[result] == at[given] for result, given in pairs)
        inner(*tensors)

    tvm_ffi.register_global_func(symbol, run, override=True)


def test_what_stays_an_operand_of_its_join() -> None:
    """Of a size that the run knows, given by the function, or read later where memory counts."""
    bb = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    for shape, gives in (((n, 6, 4, 16), False), ((2, 6, 4, 16), True)):
        x, other = (relax.Var(name, relax.TensorType(shape, "float32")) for name in ("x", "other"))
        gamma, beta = (relax.Var(name, relax.TensorType((16,), "float32")) for name in "gb")
        with bb.function("f" if gives else "main", [x, other, gamma, beta]):
            with bb.dataflow():
                made = bb.emit(op.nn.batch_norm_train(x, gamma, beta, axis=3))
                y = bb.emit(relax.TupleGetItem(made, 0))
                joined = op.concat([other, y], 3)
                joined = bb.emit_output(joined) if gives else bb.emit(joined)
                out = bb.emit_output(op.sum(bb.emit(op.sin(bb.emit(op.cumsum(joined, 1))))))
            bb.emit_func_output(relax.Tuple([out, joined] if gives else [out]))
    mod, _ = lower_norms(bb.get(), 90)
    assert "at 16 32" not in mod.attrs["external_mods"][0].inspect_source()
    text = lower_joins(mod, 90)[0].script()
    assert text.count("relay_wgrad_joins") >= 2  # for the join is a kernel
    memory = chain
    net = Net()
    net.param = lambda name, *shape: Net.param(
        net, name, *(s if name != "large" else 1 for s in shape)
    )  # type: ignore[method-assign]
    with net.bb.function("main"):
        with net.bb.dataflow():
            loss = memory(net)
        net.bb.emit_func_output(loss, net.params)
    wrt = [str(param.name) for param in net.params]
    _, calls, _ = lowered(tvm.IRModule({ADJOINT: grad(net.bb.get(), "main", wrt=wrt)[ADJOINT]}))
    assert [(c.place, c.onto, c.own) for c in calls if c.place] == [((48, 64), False, False)]


def test_an_operand_is_read_in_a_join_once_it_is_there() -> None:
    """A gradient between two joins that grow reads the operand of the second by itself."""
    net = Net()
    with net.bb.function("main"):
        with net.bb.dataflow():
            other = net.conv(net.x)
            first = net.norm(net.join(net.x, other))
            late = net.conv(first)
            numbers = [net.param(name, 16) for name in ("gamma", "beta", "mean", "rstd")]
            back = op.nn.batch_norm_train_backward(net.x, late, *numbers, axis=3)
            dx = net.bb.emit(relax.TupleGetItem(net.bb.emit(back), 0))
            last = net.norm(net.join(net.x, other, late))
            loss = net.total(net.conv(last), dx)
        net.bb.emit_func_output(loss, net.params)
    before = tvm.IRModule({ADJOINT: net.bb.get()["main"].with_attr("global_symbol", ADJOINT)})
    after, calls, _ = lowered(before)
    assert [call.within for call in calls if call.within] == [(0, 48)]
    want, got = (float(each) for each in (run(one)[0] for one in (before, after)))
    assert abs(got - want) < 2e-5 * abs(want)
