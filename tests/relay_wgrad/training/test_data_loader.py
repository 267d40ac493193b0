"""PyTorch's `DataLoader` as what a trainer's batches come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from relay_wgrad.frontend import from_onnx
from relay_wgrad.training.trainer import Trainer
from tests.support.fast import FAST
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")

SAMPLES, SIZE = 22, 4


class Samples(Dataset[dict[str, Any]]):
    """By the names of a graph's inputs, as `Trainer` wants a batch; images are mirrored."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)
        self.images = torch.randn(SAMPLES, 3, 6, 6, generator=draws)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.images[index].flip(2), "labels": index % 5}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches(workers: int) -> None:
    """As they come, of any number of processes that read them; the last one may be short."""
    graph = from_onnx(residual_net(blocks=0, size=6), weights="auto", batch="N")
    draws = torch.Generator().manual_seed(1)
    loader = DataLoader(Samples(), SIZE, shuffle=True, generator=draws, num_workers=workers)
    losses = list(Trainer(graph, FAST).train(loader))
    assert len(losses) == len(loader) == 6

    draws = torch.Generator().manual_seed(1)
    arrays = [
        {name: value.numpy() for name, value in batch.items()}
        for batch in DataLoader(Samples(), SIZE, shuffle=True, generator=draws)
    ]
    assert arrays[-1]["labels"].shape == (SAMPLES % SIZE,)
    np.testing.assert_array_equal(losses, list(Trainer(graph, FAST).train(arrays)))
