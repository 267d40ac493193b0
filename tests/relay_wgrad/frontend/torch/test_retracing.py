"""Which graphs of AOTAutograd are traced again: for other tensors, or with ops to decompose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import aot_module
from torch import nn
from torch.fx.experimental import proxy_tensor

from relay_wgrad.frontend import from_aot
from relay_wgrad.frontend.torch.retracing import decompositions, retraced
from tests.support.torch.aot import apart, ran

pytestmark = pytest.mark.usefixtures("registered")


class TracedError(Exception):
    """Of a trace that a test says is none."""


@pytest.fixture
def no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_fx(*args: Any, **kwargs: Any) -> Any:
        raise TracedError

    monkeypatch.setattr(proxy_tensor, "make_fx", make_fx)


def parts(module: nn.Module, x: torch.Tensor, rules: Any = None) -> list[tuple[Any, list[Any]]]:
    """The forward and the backward graph, each with the tensors that it is called with."""
    found: list[Any] = []

    def kept(graph: Any, example: Any) -> Any:
        def run(*inputs: Any) -> Any:
            found.append((graph, [i.detach().clone() for i in inputs]))
            return graph(*inputs)

        return run

    given: dict[str, Any] = {"fw_compiler": kept, "bw_compiler": kept}
    aot_module(module, **given, decompositions=rules)(x).square().sum().backward()
    return found


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 2),
    ).double()  # fmt: skip


def image(size: int = 8) -> torch.Tensor:
    return torch.randn(2, 3, size, size, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, about PyTorch
def test_a_decomposed_graph_of_fixed_sizes_stays(no_trace: None) -> None:
    found = parts(network(), image(), decompositions())
    assert len(found) == 2
    for graph, inputs in found:
        before = [node.name for node in graph.graph.nodes]
        made = retraced(torch, "net", graph, inputs)
        assert {node.name for node in made.graph.nodes} <= set(before)
        assert not made.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default)
        assert [node.name for node in graph.graph.nodes] == before  # the caller's is as it was
        assert apart(ran(from_aot(graph, inputs), inputs), graph(*inputs)) < 1e-9


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_other_tensors_and_other_ops_are_traced(no_trace: None) -> None:
    forward, inputs = parts(network(), image(), decompositions())[0]
    wider = [x.new_zeros(2, 3, 10, 10) if x.dim() == 4 and x.shape[1:] == (3, 8, 8) else x
             for x in inputs]  # fmt: skip
    others: list[list[Any]] = [wider, [x.float() for x in inputs], [*inputs[:-1], 1]]
    for given in others:
        with pytest.raises(TracedError):
            retraced(torch, "net", forward, given)
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)).double()
    graph, inputs = parts(normed, image())[0]
    with pytest.raises(TracedError):
        retraced(torch, "net", graph, inputs)
