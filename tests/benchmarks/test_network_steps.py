"""Networks trained beside PyTorch's losses, by a small one on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import network_steps, network_zoo


def _small(name: str) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3))
    return nn.Sequential(*layers, nn.Linear(4, 10)), 8


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_zoo, "build", _small)
    monkeypatch.setattr(network_zoo, "torchvision_models", lambda: None)


@pytest.mark.usefixtures("registered", "small")
def test_losses_are_pytorchs() -> None:
    row = network_steps.trained("ours/small", "f32", "cpu", 3)
    assert "reason" not in row
    assert row["furthest"] < 1e-6
    assert row["pytorchs"] == 0
    assert len(row["losses"]) == len(row["pytorch"]) == 3
    assert len(set(row["pytorch"])) == 3


@pytest.mark.usefixtures("registered", "small")
def test_what_parts_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_steps, "APART", -1.0)
    row = network_steps.trained("ours/small", "f32", "cpu", 1)
    assert ("reason" in row) == (row["furthest"] > 0)
    assert network_steps.apart([1.0, float("nan")], [1.0, 1.0]) == float("inf")
    assert network_steps.apart([2.0, 1.0], [2.0, 2.0]) == 0.5
