"""A step whose convolutions go to our own kernels where these are known to be faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from relay_wgrad.frontend import from_torch
from relay_wgrad.training.options import HOPPER, Options
from relay_wgrad.training.trainer import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]
BATCH, SIDE, STEPS = 64, 28, 6


class Net(nn.Module):
    """Depthwise layers of 3x3 and 5x5 between products."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, taps in ((3, 3), (width, 5)):
            layers += [
                nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, taps, padding=taps // 2, groups=width, bias=False),
                nn.BatchNorm2d(width), nn.ReLU(),
            ]  # fmt: skip
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, 7)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x).mean((2, 3)))


def test_the_same_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability() != divmod(HOPPER, 10):
        pytest.skip("nothing is known of this GPU")
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    torch.manual_seed(3)
    module, rng = Net(), np.random.default_rng(1)
    given = []
    for _ in range(STEPS):
        labels = rng.integers(0, 7, BATCH)
        x = rng.standard_normal((BATCH, 3, SIDE, SIDE)) + labels[:, None, None, None] / 3
        given.append({"x": x.astype("float32"), "labels": labels})
    losses, taken = [], []
    for helpers in (True, False):
        graph = from_torch(module, (torch.zeros(BATCH, 3, SIDE, SIDE),))
        one = Trainer(
            graph, "cuda", optimizer="momentum", lr=0.02, dtype="float16",
            on_gpu=Options(helpers=helpers),
        )  # fmt: skip
        losses.append(list(one.train(given)))
        taken.append({c.source for c in one.compiled.convolutions})
    kinds = {s.split(".")[1].split("_")[0] for s in taken[0] if s.startswith("cuda_direct.")}
    assert kinds == {"fprop", "dgrad", "wgrad"}
    assert not any(source.startswith("cuda_direct") for source in taken[1])
    np.testing.assert_allclose(*losses, rtol=0.01)
    assert losses[0][-1] < losses[0][0]
