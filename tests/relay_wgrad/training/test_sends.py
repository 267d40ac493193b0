"""`with_sends`: where a step's gradients leave it, and what it gives where nobody takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.ir import op_name
from relay_wgrad.training import exchange
from relay_wgrad.training.compiled import compile_module
from relay_wgrad.training.processes import Processes
from relay_wgrad.training.sends import with_sends
from relay_wgrad.training.step import ADJOINT, step_module
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")


def graph_of() -> TrainingGraph:
    """With statistics, and a parameter whose gradient is another's too."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 5),
    )  # fmt: skip
    return from_torch(module, (torch.zeros(3, 2, 6, 6),))


def sends(module: tvm.IRModule) -> list[tuple[int, relax.Call]]:
    """The calls of a module that send, each with its place."""
    values = [binding.value for binding in bindings_of(module[ADJOINT])]
    return [
        (i, value) for i, value in enumerate(values)
        if op_name(value) == "relax.call_dps_packed"
        and str(value.args[0].global_symbol) == exchange.SEND
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [1, 200, 1 << 20])
def test_each_result_is_sent_once_where_it_is_made(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(exchange, "LIMITS", (limit, limit))
    graph = graph_of()
    module, sent = with_sends(step_module(graph), graph)
    found = sends(module)
    bindings = list(bindings_of(module[ADJOINT]))
    places = {binding.var: i for i, binding in enumerate(bindings)}
    count = 0
    for place, call in found:
        operands = list(call.args[1].fields)[1:]
        count += len(operands)
        assert place == 1 + max(places.get(x, -1) for x in operands) or limit == 1
        sizes = [4 * int(np.prod([int(n) for n in x.ty.shape.values] or [1])) for x in operands]
        assert sum(sizes[:-1]) < limit
    assert count == 1 + len(graph.updates) + len(graph.trainable)
    assert (len(found) == 2) is (limit > 200)
    # Gradients are in buckets of their own, from the last one on.
    assert not sent[0]
    assert sent[-1][-1] == 0
    assert sorted(place for some in sent for place in some) == list(range(len(graph.trainable)))
    assert sorted(int(call.args[1].fields[0]) for _, call in found) == list(range(len(found)))


def run(module: tvm.IRModule, arguments: list[Any]) -> list[Any]:
    vm = compile_module(module, FAST).vm
    outputs, gradients = vm[ADJOINT](*[tvm.runtime.tensor(a) for a in arguments])
    return [x.numpy() for x in (*outputs, *gradients)]


@pytest.mark.longer_cases("None", why="bfloat16's step sends float32 too")
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_alone_it_gives_its_own(dtype: str | None) -> None:
    """The same bits as the step without, where halves are sent as they are made too."""
    exchange.Exchange(Processes(0, 1, True, "cpu"))
    graph = graph_of()
    plain = step_module(graph, dtype=dtype, wide_weight_gradients=False)
    sent, _ = with_sends(plain, graph)
    operands = {str(x.ty.dtype) for _, call in sends(sent) for x in list(call.args[1].fields)[1:]}
    assert operands == ({"float32"} if dtype is None else {"float32", "bfloat16"})
    arguments = [np.asarray(a) for a in graph.arguments(graph.random_batch(0))]
    for got, want in zip(run(sent, arguments), run(plain, arguments), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
