"""Convolutions alone: what becomes of a graph on its way to Inductor, without Inductor."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from relay_wgrad.torch import inductor
from relay_wgrad.torch.choosing import Took
from relay_wgrad.torch.reports import CompiledGraph

pytestmark = pytest.mark.usefixtures("registered")

aten = torch.ops.aten
CASES = 24
SHORT = 5  # a problem in short form, of groups


def gradients(x: Any, weight: Any, bias: Any, dy: Any) -> Any:
    y = aten.convolution(x, weight, bias, [2, 2], [1, 1], [1, 1], False, [0, 0], 2)
    mask = [True, True, True]
    given = ([5], [2, 2], [1, 1], [1, 1], False, [0, 0], 2, mask)
    dx, dw, db = aten.convolution_backward(dy, x, weight, *given)
    return y, dx, dw, db


@pytest.mark.parametrize("wins", ["all", "wgrad"])
def test_a_graph_for_inductor(wins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that win are our operators, the others are asked of PyTorch alone."""

    def measured(node: Any, kind: Any, *_: Any) -> Any:
        return wins == "all" or kind.value == wins, "measured"

    monkeypatch.setattr(inductor, "choice", measured)
    shapes = ((2, 4, 7, 7), (6, 2, 3, 3), (6,), (2, 6, 4, 4))
    given = [torch.randn(s, dtype=torch.float64) for s in shapes]
    graph = make_fx(gradients, tracing_mode="fake")(*given)
    report = CompiledGraph("mine")
    inductor.rewrite(graph, report)
    for got, want in zip(graph(*given), gradients(*given), strict=True):
        assert torch.allclose(got, want, rtol=1e-10)
    targets = [str(n.target) for n in graph.graph.nodes]
    ours = sum("relay_wgrad" in t for t in targets)
    assert ours == (3 if wins == "all" else 1)
    assert len(report.convolutions) == 3
    (backward,) = (n for n in graph.graph.nodes if "convolution_backward" in str(n.target))
    assert backward.args[10] == [wins != "all", False, True]


@pytest.mark.longer
def test_measured_choice() -> None:
    """Each side's time is said once for a kind of call."""
    shapes = ((2, 4, 7, 7), (6, 2, 3, 3), (6,), (2, 6, 4, 4))
    graph = make_fx(gradients, tracing_mode="fake")(*[torch.randn(s) for s in shapes])
    report = CompiledGraph("mine")
    inductor.rewrite(graph, report)
    assert len(report.convolutions) == 3
    assert all("ms, torch" in line for line in report.convolutions), report


def test_what_would_keep_the_host_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of `optimize`: also of the host's time.  PyTorch's generator is left alone."""
    took = {"ours": Took(1.0, 3.0), "theirs": Took(2.0, 2.0)}
    monkeypatch.setattr(inductor, "times_of", lambda calls, on: took)
    shapes = ((2, 4, 7, 7), (6, 2, 3, 3), (6,), (2, 6, 4, 4))
    given = [torch.randn(s, dtype=torch.float64) for s in shapes]
    report, state = CompiledGraph("mine"), torch.get_rng_state()
    inductor.rewrite(make_fx(gradients, tracing_mode="fake")(*given), report)
    assert torch.equal(torch.get_rng_state(), state)
    said = "torch: 1.000 ms, torch 2.000: ours would keep the host for 3.000 ms"
    assert [line.partition(" ")[2] for line in report.convolutions] == [said] * 3


# ---- random problems -----------------------------------------------------------------------------


def problem(seed: int, extra: int = 0) -> tuple[list[Any], Any]:
    """(data, weight and gradient, each in one of the two memory orders; both passes of them).

    extra : more images and pixels of the same.
    """
    rng = random.Random(seed)
    groups = rng.choice([1, 1, 2, 3])
    c, k = (groups * rng.randint(1, 3) for _ in range(2))
    # PyTorch's short form: one number for both axes.
    stride, padding, dilation = (
        [rng.randint(low, 2) for _ in range(rng.randint(1, 2))] for low in (1, 0, 1)
    )
    taps = [rng.randint(1, 3) for _ in range(2)]
    sizes = [
        (count - 1) * dilation[i % len(dilation)] + rng.randint(1, 3) + extra
        for i, count in enumerate(taps)
    ]
    x, weight = (
        torch.randn(rng.randint(1, 3) + extra, c, *sizes),
        torch.randn(k, c // groups, *taps),
    )
    geometry = (stride, padding, dilation, False, [0, 0], groups)

    def both(x: Any, weight: Any, dy: Any) -> Any:
        mask = [True, True, False]
        y = aten.convolution(x, weight, None, *geometry)
        return y, *aten.convolution_backward(dy, x, weight, None, *geometry, mask)[:2]

    dy = torch.randn(aten.convolution(x, weight, None, *geometry).shape)
    orders = [torch.contiguous_format, torch.channels_last]
    given = [t.double().contiguous(memory_format=rng.choice(orders)) for t in (x, weight, dy)]
    return given, both


def rewritten(monkeypatch: pytest.MonkeyPatch, both: Any, given: Any, mode: Any) -> Any:
    """(the graph with our three operators, what the traced one says of its results)."""
    monkeypatch.setattr(inductor, "choice", lambda *_: (True, "measured"))
    graph = make_fx(both, tracing_mode=mode)(*given)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    said = [node.meta["val"] for node in output.args[0]]
    report = CompiledGraph("mine")
    inductor.rewrite(graph, report)
    assert [line.partition(" ")[2] for line in report.convolutions] == ["ours: measured"] * 3
    return graph, said


def lies(value: Any) -> list[int]:
    """The strides by which a tensor's elements are reached."""
    return [s for size, s in zip(value.shape, value.stride(), strict=True) if size > 1]


def test_results_lie_as_they_were_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows may take elements by their places; shapes and strides need no kernel."""
    for seed in range(CASES):
        given, both = problem(seed)
        graph, said = rewritten(monkeypatch, both, given, "fake")
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            found = graph(*(mode.from_tensor(x) for x in given))
        for got, want in zip(found, said, strict=True):
            assert (got.shape, lies(got)) == (want.shape, lies(want)), seed


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_values(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of more images and pixels than those of the trace."""
    extra = 2 if mode == "symbolic" else 0
    given, both = problem(SHORT, extra)
    graph, _ = rewritten(monkeypatch, both, problem(SHORT, 2 * extra)[0], mode)
    for got, want in zip(graph(*given), both(*given), strict=True):
        assert (got - want).norm() <= 1e-12 * want.norm()
