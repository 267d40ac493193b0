"""A network of volumes from PyTorch, trained beside PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from relay_wgrad import training
from relay_wgrad.frontend import from_torch
from tests.support.fast import FAST
from tests.support.torch.volume_cases import Small

pytestmark = pytest.mark.usefixtures("registered")


@pytest.mark.longer("whole networks; smaller ones stay")
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
