"""Steps in half precision on a CPU: gradients are as far from float32's as PyTorch's autocast's.

Tensors are larger than what passes over kernels call small (64 KiB), unlike those of other tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from legalize.cpu import host_target
from relay_wgrad.frontend import from_torch
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.training.trainer import Trainer

WIDTH, CLASSES, IMAGES, SIDE = 64, 10, 4, 16
pytestmark = pytest.mark.usefixtures("registered")


class Gated(nn.Module):
    """Squeeze and excitation around a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(WIDTH, 16, 1), nn.SiLU(), nn.Conv2d(16, WIDTH, 1),
            nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return x + y * self.gate(y)


class Joined(nn.Module):
    """Two branches side by side, as an Inception or Fire module has them."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(WIDTH, 48, 1), nn.BatchNorm2d(48), nn.ReLU())
        self.right = nn.Conv2d(WIDTH, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(torch.cat([self.left(x), self.right(x)], 1)))


class OverChannels(nn.Module):
    """A block of ConvNeXt's: a layer norm over channels and a GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.wide(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + y.permute(0, 3, 1, 2)


def normalized(norm: Any, activation: Any) -> nn.Module:
    conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
    return nn.Sequential(conv, norm, activation)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "batch norm, ReLU": lambda: normalized(nn.BatchNorm2d(WIDTH), nn.ReLU()),
    "batch norm, SiLU, max pool": lambda: nn.Sequential(
        normalized(nn.BatchNorm2d(WIDTH), nn.SiLU()), nn.MaxPool2d(3, 2, 1)
    ),
    "instance norm, LeakyReLU": lambda: normalized(
        nn.InstanceNorm2d(WIDTH, affine=True), nn.LeakyReLU(0.01)
    ),
    "group norm, Hardswish": lambda: normalized(nn.GroupNorm(8, WIDTH), nn.Hardswish()),
    "gate": Gated,
    "joined": Joined,
    "layer norm, GELU": OverChannels,
}


def network(block: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, WIDTH, 3, padding=1)
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, CLASSES))
    return nn.Sequential(stem, block(), block(), *ends)


def theirs(module: nn.Module, values: list[torch.Tensor], half: str | None) -> list[np.ndarray]:
    module.zero_grad()
    with torch.autocast("cpu", getattr(torch, half or "bfloat16"), enabled=half is not None):
        loss = nn.functional.cross_entropy(module(values[0]), values[1])
    (loss * 256).backward()
    return [p.grad.double().numpy() / 256 for p in module.parameters() if p.grad is not None]


def far(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """‖got - want‖ / ‖want‖ of all together, and of none alone 20 times as much."""
    norms = [(np.linalg.norm(a - b), np.linalg.norm(b)) for a, b in zip(got, want, strict=True)]
    total = np.linalg.norm([each for _, each in norms])
    together = float(np.linalg.norm([each for each, _ in norms]) / total)
    alone = max(float(a / max(b, 1e-2 * total)) for a, b in norms)
    return max(together, alone / 20)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_gradients(name: str, half: str, layout: str) -> None:
    module = network(BLOCKS[name])
    graph = from_torch(module, (torch.zeros(IMAGES, 3, SIDE, SIDE),))
    trainer = Trainer(graph, host_target(2), layout=layout, dtype=half)
    values = graph.random_batch(0)
    _, gradients = trainer.compiled.vm[ADJOINT](*trainer.arguments(values))
    given = [torch.from_numpy(np.asarray(x)) for x in values.values()]
    want, autocast = theirs(module, given, None), theirs(module, given, half)
    got = [g.numpy().astype("float64") for g in gradients]
    assert far(got, want) <= 2 * far(autocast, want) + 1e-3
