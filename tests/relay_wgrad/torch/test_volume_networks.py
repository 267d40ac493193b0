"""nnU-Net's plain and residual-encoder networks, deeply supervised by its loss: every gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import relay_wgrad.torch as rt
from relay_wgrad.torch import compiler, norms
from relay_wgrad.torch.reports import compiled_graphs
from tests.support.torch.plain_networks import VolumeUNet
from tests.support.torch.segmentation_losses import DiceAndCrossEntropy, SoftDice

pytestmark = pytest.mark.usefixtures("registered")

NETWORKS: dict[str, Callable[[], VolumeUNet]] = {
    "plain": lambda: VolumeUNet(True, 3, (4, 6, 8), levels=True, bias=True),
    "residual": lambda: VolumeUNet(True, 3, (4, 6, 8), (1, 2, 1), levels=True, bias=True),
}
SHAPES = ((2, 1, 8, 12, 8), (2, 1, 4, 6, 4))
NORMS = {"plain": 10, "residual": 13}


class Supervised(nn.Module):
    """The losses of all levels, each half the weight of the finer one, as one number."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.loss = DiceAndCrossEntropy(None, SoftDice(batch_dice=True, do_bg=False, smooth=1e-5))

    def forward(self, x: Any, fine: Any, coarse: Any) -> Any:
        found = self.net(x)
        pairs = zip((2 / 3, 1 / 3), found, (fine, coarse), strict=True)
        return sum(weight * self.loss(logits, labels) for weight, logits, labels in pairs)


def made(kind: str) -> tuple[Supervised, list[torch.Tensor]]:
    torch.manual_seed(0)
    module = Supervised(NETWORKS[kind]())
    return module, [torch.randn(SHAPES[0]), *(torch.randint(0, 3, shape) for shape in SHAPES)]


def run(model: Any, module: nn.Module, given: Any) -> list[torch.Tensor]:
    module.zero_grad()
    loss = model(*given)
    loss.backward()
    grads = [p.grad for p in module.parameters()]
    return [loss.detach(), *(g.clone() for g in grads if g is not None)]


def check(module: nn.Module, model: Any, given: list[torch.Tensor]) -> None:
    """Each gradient beside float64, as near as PyTorch's own in float32."""
    exact, eager = copy.deepcopy(module).double(), copy.deepcopy(module)
    want = run(exact, exact, [given[0].double(), *given[1:]])
    theirs, ours = run(eager, eager, given), run(model, module, given)
    assert len(ours) == len(want)
    # Of a bias in front of a normalization the gradient is 0: what is left is rounding.
    least = 1e-2 * max(float(v.norm()) for v in want)
    for one, other, exactly in zip(ours, theirs, want, strict=True):
        size = float(exactly.norm()) + least
        error, usual = (float((v.double() - exactly).norm()) / size for v in (one, other))
        assert error <= max(3 * usual, 1e-5), (tuple(one.shape), error, usual)


@pytest.mark.longer("whole networks; norms, losses and layers of volumes stay")
@pytest.mark.parametrize("kind", NETWORKS)
def test_training_step(kind: str) -> None:
    module, given = made(kind)
    check(module, rt.TrainingStep(module, given), given)


@pytest.mark.longer("whole networks; single norms stay")
@pytest.mark.longer_cases("plain", why="the residual one has all that it has")
@pytest.mark.parametrize("kind", NETWORKS)
def test_torch_compile(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every normalization is one operator, as where there are kernels for them."""
    counts: list[int] = []

    def noted(graph: Any) -> int:
        counts.append(norms.whole_norms(graph))
        left = [n for n in graph.nodes if "leaky_relu" in str(n.target)]
        assert not left, "an activation is not taken along"
        return counts[-1]

    monkeypatch.setattr(compiler, "has_norms", lambda values: True)
    monkeypatch.setattr(compiler, "whole_norms", noted)
    torch._dynamo.reset()
    module, given = made(kind)
    check(module, torch.compile(module, backend=compiler.backend, fullgraph=True), given)
    assert counts == [NORMS[kind]]
    assert not [graph.reason for graph in compiled_graphs()[-2:] if graph.reason]
