"""A PyTorch module trained here, beside PyTorch's own training, and its parameters given back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as fn

from legalize.cpu import host_target
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import from_torch
from relay_wgrad.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("registered")


@pytest.mark.longer("steps are compared elsewhere, and examples train modules")
def test_training_is_pytorchs() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 9, 4),
    )  # fmt: skip
    configure_threads()
    graph = from_torch(module, (torch.rand(4, 3, 8, 8),))
    batch = graph.random_batch(0)
    trainer = Trainer(graph, host_target(), optimizer="momentum", lr=0.05)
    assert "batch_norm_train_backward" in trainer.module.script()  # two sums, not four
    losses = [trainer.step(batch) for _ in range(5)]

    twin = copy.deepcopy(module)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    x, labels = (torch.tensor(v) for v in batch.values())
    want = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = fn.cross_entropy(twin(x), labels)
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    assert losses == pytest.approx(want, rel=1e-4)
    assert losses[-1] < 0.5 * losses[0]

    trained = {
        graph.onnx_names[name]: torch.tensor(value.numpy())
        for name, value in trainer.params.items()
    }
    assert not module.load_state_dict(trained, strict=False).unexpected_keys
    for name, value in twin.state_dict().items():
        if not name.endswith("num_batches_tracked"):  # nothing that is trained or used
            torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-3, atol=1e-4)
