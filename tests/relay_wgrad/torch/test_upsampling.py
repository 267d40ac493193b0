"""Interpolation in `torch.compile`: whole ops, and the numbers and memory order of eager mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import library as torch_library
from torch.nn import functional as F

from relay_wgrad.torch import compiler, pairs
from relay_wgrad.torch.reports import compiled_graphs

pytestmark = pytest.mark.usefixtures("registered")

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], bool]] = {  # shape, how, whether it is ours
    "nearest line": ((2, 3, 5), {"scale_factor": 2}, True),
    "nearest volume": ((2, 3, 4, 3, 5), {"scale_factor": 2}, True),
    "nearest odd": ((2, 3, 4, 5), {"size": (7, 3)}, True),
    "exact": ((2, 3, 4, 5), {"scale_factor": (1.5, 2.5), "mode": "nearest-exact"}, True),
    "line": ((2, 3, 5), {"scale_factor": 1.7, "mode": "linear"}, True),
    "corners": (
        (2, 3, 4, 5), {"scale_factor": 2.0, "mode": "bilinear", "align_corners": True}, True,
    ),
    "volume": ((2, 3, 4, 3, 5), {"scale_factor": 2, "mode": "trilinear"}, True),
    "smaller": ((2, 3, 6, 5, 7), {"size": (3, 5, 4), "mode": "trilinear"}, True),
    "cubic": ((2, 3, 4, 5), {"scale_factor": 2, "mode": "bicubic"}, False),
    "antialias": ((2, 3, 6, 6), {"size": 4, "mode": "bilinear", "antialias": True}, False),
}  # fmt: skip


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The ops of each graph that is compiled; of a pair that is compiled as a whole those of both,
    since AOTAutograd may be asked for the first alone."""
    seen: list[list[str]] = []
    compiled = compiler.compiled

    def noted(name: str, calls: Any, graph: Any, example: Any) -> Any:
        pair = graph.meta.get(pairs.ATTRIBUTE)
        wholes = pair.parts if isinstance(pair, pairs.Pair) else [graph]
        if calls.part == "forward" or len(wholes) == 1:
            seen.extend(
                [str(n.target) for n in whole.graph.nodes if n.op == "call_function"]
                for whole in wholes
            )
        return compiled(name, calls, graph, example)

    monkeypatch.setattr(compiler, "compiled", noted)
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


@pytest.mark.share(2)
@pytest.mark.parametrize("name", CASES)
def test_whole_and_right(name: str, graphs: list[list[str]]) -> None:
    shape, how, is_ours = CASES[name]
    torch.manual_seed(0)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True)]
    leaves.append(leaves[0].detach().clone().requires_grad_())

    def f(x: Any) -> Any:
        return F.interpolate(x * 2, **how)

    want = f(leaves[0])
    got = torch.compile(f, backend=compiler.backend, dynamic=False, fullgraph=True)(leaves[1])
    dy = torch.randn(want.shape, dtype=torch.float64)
    wanted, made = (
        torch.autograd.grad(y, x, dy)[0] for y, x in zip((want, got), leaves, strict=True)
    )
    assert torch.allclose(got, want, rtol=1e-12)
    assert torch.allclose(made, wanted, rtol=1e-12, atol=1e-14)
    own = [[op for op in ops if op.startswith("relay_wgrad.upsample")] for ops in graphs]
    assert own == ([["relay_wgrad.upsample.default"], ["relay_wgrad.upsample_backward.default"]]
                   if is_ours else [[], []])  # fmt: skip
    assert not [graph.reason for graph in compiled_graphs()[-2:] if graph.reason]


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_ops(order: Any) -> None:
    """PyTorch runs them as well: where a graph is refused."""
    x = torch.randn(2, 3, 4, 5).to(memory_format=order).requires_grad_()
    tail = ([8, 9], False, [])
    torch_library.opcheck(torch.ops.relay_wgrad.upsample.default, (x, "upsample_bilinear2d", *tail))
    dy = torch.randn(2, 3, 8, 9).to(memory_format=order)
    given = (dy, "upsample_bilinear2d", [8, 9], [2, 3, 4, 5], False, [])
    torch_library.opcheck(torch.ops.relay_wgrad.upsample_backward.default, given)
