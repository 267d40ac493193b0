"""Steps and evaluation of one compiled program for batches of any size."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as fn

from relay_wgrad.frontend import from_torch
from relay_wgrad.training import Trainer
from relay_wgrad.training.data import Data
from relay_wgrad.training.evaluation import Evaluator
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")

SAMPLES, SIZE = 11, 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 16, 4),
    )  # fmt: skip


def samples() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, 3, 4, 4), dtype=np.float32)
    return {"input": x, "labels": rng.integers(0, 4, SAMPLES)}


X = torch.zeros(2, 3, 4, 4)


@pytest.mark.longer
def test_an_epoch_with_a_short_batch_is_pytorchs() -> None:
    """The same compiled step takes 4, 4 and 3 images; evaluation by another takes all samples."""
    module = network()
    graph = from_torch(module, (X,), batch="N")
    data = Data(graph, samples(), seed=1, size=SIZE, drop_last=False)
    assert (data.batches, data.parts) == (3, 3)
    trainer = Trainer(graph, FAST, optimizer="momentum", lr=0.05)
    assert [c.source for c in trainer.compiled.convolutions] == ["llvm direct", "llvm direct wgrad"]
    batches = [data.batch(step) for step in range(6)]
    assert [len(b["labels"]) for b in batches] == [4, 4, 3] * 2
    losses = list(trainer.train(batches))

    twin = copy.deepcopy(module)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    want = []
    for batch in batches:
        optimizer.zero_grad()
        loss = fn.cross_entropy(twin(torch.tensor(batch["input"])), torch.tensor(batch["labels"]))
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    assert losses == pytest.approx(want, rel=1e-4)
    state = twin.state_dict()
    for name, value in trainer.params.items():
        expected = state[graph.onnx_names[name]].numpy()
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-3, atol=1e-5)

    evaluated = from_torch(module, (X,), batch="N", bn="eval")
    held = Data(evaluated, samples(), size=SIZE)
    assert (held.batches, held.parts) == (2, 3)
    found = Evaluator(evaluated, FAST)(trainer.params, held)
    twin.eval()
    with torch.no_grad():
        logits = twin(torch.tensor(samples()["input"]))
    labels = torch.tensor(samples()["labels"])
    assert found.loss == pytest.approx(fn.cross_entropy(logits, labels).item(), rel=1e-4)
    assert found.accuracy == float((logits.argmax(1) == labels).float().mean())


REFUSED = {
    "no number": ({}, "its batch is open: size must be a number of samples"),
    "too few": ({"size": 0}, "a batch must be of at least 1 .*, got 0"),
    "more than there are": ({"size": 12}, "11 samples are less than a batch of 12"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_data_of_an_open_batch(options: dict[str, Any], message: str) -> None:
    graph = from_torch(network(), (X,), batch="N")
    with pytest.raises(ValueError, match=message):
        Data(graph, samples(), **options)


def test_data_of_a_fixed_batch() -> None:
    graph = from_torch(network(), (X,))
    with pytest.raises(ValueError, match="size must be its batch, 2, got 4"):
        Data(graph, samples(), size=4)
    with pytest.raises(ValueError, match=r"a short last batch needs an open one.*; it has 2"):
        Data(graph, samples(), drop_last=False)


def test_a_short_batch_that_is_not_taken_is_named_before_training() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 4), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 4))
    graph = from_torch(module, (X,), batch="N")
    for size in (4, 3):
        assert Data(graph, samples(), size=size, drop_last=False).samples == SAMPLES
    Data(graph, samples(), size=5)
    with pytest.raises(ValueError, match=r"at least 2 \(.*more than one value.*\), got 1"):
        Data(graph, samples(), size=5, drop_last=False)
