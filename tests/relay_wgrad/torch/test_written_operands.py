"""Compiled graphs that write into their operands, and gradients that are kept tensors themselves.

AOTAutograd leaves the writes in the forward graph; each function here is compared with PyTorch as
it runs it, as kernels and as graphs of a lane without a device, while an earlier call's backward
pass is still to come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from relay_wgrad.torch import compiler, replayed
from relay_wgrad.torch.reports import compiled_graphs
from relay_wgrad.torch.writes import without_writes
from tests.support.torch.lane import borrowed, on_lanes


def kept_and_written(x: Any, w: Any, state: Any) -> Any:
    hidden = x @ w
    state.copy_(hidden.detach())
    return (hidden.sin() @ w).cos()


def read_and_then_written(x: Any, w: Any, state: Any) -> Any:
    scale = state * 2
    y = x @ w * scale
    state.add_(1)
    return y


def cloned_and_written(x: Any, w: Any, state: Any) -> Any:
    before = state.clone()
    state.mul_(0.9).add_(x.detach(), alpha=0.1)
    return x @ w * before


def a_view_read(x: Any, w: Any, state: Any) -> Any:
    column = state[:, :1] * 2
    state.sub_(1)
    return x * column @ w


def written_and_read(x: Any, w: Any, state: Any) -> Any:
    state.add_(x.detach())
    return x @ w * state.clone()


def only_written(x: Any, w: Any, state: Any) -> Any:
    state.copy_(x.detach())
    return x @ w


class Own(torch.autograd.Function):
    """Its gradients are what it has kept."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        first, second = x.exp(), w.sin()
        ctx.save_for_backward(first, second)
        return first.sum() + second.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.saved_tensors


def gradients_kept(x: Any, w: Any, state: Any) -> Any:
    return Own.apply(x, w)


FUNCTIONS = (
    kept_and_written, read_and_then_written, cloned_and_written, a_view_read, written_and_read,
    only_written, gradients_kept,
)  # fmt: skip


def ran(function: Callable[..., Any]) -> list[torch.Tensor]:
    """Outputs, states and gradients of calls that go back at once, and then after the next one."""
    torch.manual_seed(0)
    w, state = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    found, before, held = [], [], []
    for turn in range(20):
        x = torch.randn(3, 3, requires_grad=True)
        out = function(x, w, state)
        found += [out.detach().clone(), state.clone()]
        before.append((out, x))
        if len(before) > turn // 12:
            last, of = before.pop(0)
            of_x, of_w = torch.autograd.grad(last.sum(), [of, w])
            held += [of_x.clone(), of_w]
    return found + held


@pytest.mark.share(3)  # with graphs and without
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_pytorch(
    function: Any, graphs: bool, registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if graphs:
        on_lanes(monkeypatch)
        monkeypatch.setattr(replayed, "tvm_tensor", borrowed)
    torch._dynamo.reset()
    step = torch.compile(function, backend=compiler.backend, options={"graphs": graphs})
    for one, other in zip(ran(step), ran(function), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert [graph.reason for graph in compiled_graphs()[-2:]] == ["", ""]


def test_an_operand_that_is_the_result(registered: None) -> None:
    torch._dynamo.reset()
    step = torch.compile(lambda x: x.add_(1), backend=compiler.backend)
    x = torch.zeros(3)
    with torch.no_grad():
        assert step(x) is x
    assert torch.equal(x, torch.ones(3))
    assert compiled_graphs()[-1].reason == ""


def counts_alone(x: Any, w: Any, count: Any) -> Any:
    count.add_(1)
    return x @ w


def counts_and_reads(x: Any, w: Any, count: Any) -> Any:
    y = x @ w * count.clone()
    count.add_(3)
    return y


def counts_by_what_is_read(x: Any, w: Any, count: Any) -> Any:
    count.add_(2)
    return x @ w * count


def counts_twice(x: Any, w: Any, count: Any) -> Any:
    count.add_(1)
    y = x @ w
    count.add_(1)
    return y


def counts_and_gives(x: Any, w: Any, count: Any) -> Any:
    count.add_(1)
    return (x @ w).sum() + count.clone(), count.clone()


COUNTING = (counts_alone, counts_and_reads, counts_by_what_is_read, counts_twice, counts_and_gives)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
@pytest.mark.parametrize("function", COUNTING, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_counts(
    function: Any, dtype: torch.dtype, registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of batches of a layer, which one kernel renews for all of them."""
    on_lanes(monkeypatch)
    monkeypatch.setattr(replayed, "tvm_tensor", borrowed)
    torch._dynamo.reset()
    torch.manual_seed(0)
    w, found = torch.randn(3, 3, requires_grad=True), list[list[torch.Tensor]]()
    draws = torch.randn(9, 3, 3)
    for call in (torch.compile(function, backend=compiler.backend), function):
        count, seen = torch.full((2,), 5, dtype=dtype)[:1], list[torch.Tensor]()
        for x in draws:
            outs = call(x, w, count)
            outs = outs if isinstance(outs, tuple) else (outs,)
            seen += [*(out.detach().clone() for out in outs), count.clone()]
            seen += torch.autograd.grad(outs[0].sum(), [w])
        found.append(seen)
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)
    assert [graph.reason for graph in compiled_graphs()[-2:]] == ["", ""]


def test_counts_are_no_part_of_the_graph(registered: None) -> None:
    torch._dynamo.reset()
    layers = [torch.nn.Conv2d(2, 2, 1), torch.nn.BatchNorm2d(2), torch.nn.BatchNorm2d(2)]
    net = torch.nn.Sequential(*layers).double()
    graphs: list[Any] = []

    def seen(graph: Any, inputs: Any) -> Any:
        from torch._functorch.aot_autograd import make_boxed_func

        graphs.append(without_writes(graph))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        keep_inference_input_mutations=True, fw_compiler=seen, bw_compiler=seen,
        inference_compiler=seen,
    )  # fmt: skip
    torch.compile(net, backend=backend)(torch.randn(3, 2, 4, 4, dtype=torch.float64))
    (graph, writes) = graphs[0]
    assert (len(writes.copied), len(writes.counted), writes.steps) == (4, 2, [1, 1])
    assert not any(node.meta["val"].dtype == torch.int64 for node in graph.graph.nodes if node.users
                   and isinstance(node.meta.get("val"), torch.Tensor))  # fmt: skip
