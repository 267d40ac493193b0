"""A network of volumes from PyTorch, trained beside PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from relay_wgrad import training
from relay_wgrad.frontend import from_torch
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")


class Small(nn.Module):
    """An encoder, a decoder with a skip, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm3d(4)
        self.down = nn.Conv3d(4, 6, (3, 2, 2), stride=2, padding=(1, 0, 0), groups=2)
        self.up = nn.ConvTranspose3d(6, 4, 2, stride=2)
        self.pool = nn.MaxPool3d((1, 2, 2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = x + self.up(torch.relu(self.down(x)))
        return self.head(self.pool(x).mean((2, 3, 4)))


def test_trained_beside_pytorch() -> None:
    """Five steps of momentum: losses and parameters are autograd's."""
    torch.manual_seed(0)
    model = Small().double()
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((2, 2, 4, 6, 6)), np.array([0, 2])
    graph = from_torch(model, (torch.tensor(x),), loss="cross_entropy")
    trainer = training.Trainer(graph, FAST, optimizer="momentum", lr=0.05)
    data, target = (spec.name for spec in graph.inputs)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    mine, theirs = [], []
    for _ in range(5):
        mine.append(trainer.step({data: x, target: labels}))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(labels))
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    assert np.allclose(mine, theirs, rtol=1e-10)
