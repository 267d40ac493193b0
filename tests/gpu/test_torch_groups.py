"""`torch.compile` of group and instance normalization on a GPU, beside float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from relay_wgrad.torch import compiler, norms
from relay_wgrad.torch.reports import compiled_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]


class Net(nn.Module):
    """nnU-Net's blocks, one with a residual, and one of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv3d(c, 16, 3, padding=1) for c in (1, 16, 16))
        self.one, self.two = (nn.InstanceNorm3d(16, affine=True) for _ in range(2))
        self.grouped = nn.GroupNorm(4, 16)

    def forward(self, x: Any) -> Any:
        act = nn.functional.leaky_relu
        y = act(self.one(self.a(x)), 0.01, True)
        y = act(self.two(self.b(y)) + y, 0.01, True)
        return nn.functional.gelu(self.grouped(self.c(y)))


def run(model: Any, module: nn.Module, x: Any, half: Any) -> list[torch.Tensor]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cuda", half, enabled=half is not None):
        y = model(x)
    (
        y * torch.cos(torch.arange(y.numel(), device="cuda", dtype=y.dtype)).view(y.shape)
    ).sum().backward()
    grads = [x.grad, *(p.grad for p in module.parameters())]
    return [y.detach(), *(g.clone() for g in grads if g is not None)]


@pytest.mark.parametrize("half", [None, torch.bfloat16])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last_3d])
def test_found_and_right(half: Any, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def noted(graph: Any) -> int:
        counts.append(norms.whole_norms(graph))
        return counts[-1]

    monkeypatch.setattr(compiler, "whole_norms", noted)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = Net().cuda().to(memory_format=order)
    x = torch.randn(2, 1, 9, 10, 11, device="cuda").to(memory_format=order)
    exact, eager = copy.deepcopy(module).double(), copy.deepcopy(module)
    want = run(exact, exact, x.double(), None)
    theirs = run(eager, eager, x, half)
    model = torch.compile(module, backend="relay_wgrad", fullgraph=True)
    for _ in range(4):  # the last ones are CUDA graphs
        ours = run(model, module, x, half)
    assert counts == [3]
    assert not [graph.reason for graph in compiled_graphs()[-2:] if graph.reason]
    most = max(float(v.norm()) for v in want)
    for one, other, exactly in zip(ours, theirs, want, strict=True):
        size = float(exactly.norm()) + 1e-2 * most
        error, usual = (float((v.double() - exactly).norm()) / size for v in (one, other))
        assert error <= max(3 * usual, 2e-2 if half else 1e-5), (error, usual)
