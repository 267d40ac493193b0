"""Batches that a device copies from where they are: a folder's, a DataLoader's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training.images import ImageFolder
from relay_wgrad.training.recycled import memory_of
from relay_wgrad.training.trainer import Trainer

Image = pytest.importorskip("PIL.Image")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

STEPS, BATCH, SIDE = 40, 16, 64


class Samples(Dataset[dict[str, Any]]):
    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)
        self.images = torch.randn(48, 3, SIDE, SIDE, generator=draws)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input": self.images[index], "labels": index % 5}


@pytest.fixture(scope="module")
def made() -> tuple[Trainer, Any]:
    import relay_wgrad

    relay_wgrad.register()
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 5),
    )  # fmt: skip
    trainer = Trainer(from_torch(module, (torch.zeros(BATCH, 3, SIDE, SIDE),)), "cuda", lr=0.01)
    params = {name: value.numpy().copy() for name, value in trainer.params.items()}
    return trainer, (params, [value.numpy().copy() for value in trainer.state])


def losses(made: tuple[Trainer, Any], batches: Any) -> list[float]:
    trainer, (params, state) = made
    trainer.set_state(params, state, steps=0, skipped=0, good_steps=0, loss_scale=None)
    return list(trainer.train(batches))


def plain(batches: Any) -> Iterator[dict[str, Any]]:
    """The same in memory that is nobody's else."""
    for batch in batches:
        yield {name: torch.as_tensor(value).numpy().copy() for name, value in batch.items()}


def folder_of(graph: TrainingGraph, path: Path) -> ImageFolder:
    rng = np.random.default_rng(0)
    for number in range(40):
        place = path / str(number % 5)
        place.mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, (5, 7, 3), "uint8")
        picture = Image.fromarray(pixels).resize((90 + number, 80), Image.BICUBIC)
        picture.save(place / f"{number}.jpg", quality=90)
    return ImageFolder(graph, path, 1)


def test_a_folder(made: tuple[Trainer, Any], tmp_path: Path) -> None:
    data = folder_of(made[0].graph, tmp_path)
    assert data.notes == []
    want = losses(made, plain(data.batch(step) for step in range(STEPS)))
    seen: set[int] = set()

    def batches() -> Iterator[dict[str, Any]]:
        for step in range(STEPS):
            batch = data.batch(step)
            memory = memory_of(batch["input"])
            assert memory is not None
            seen.add(memory.address)
            yield batch
            assert memory.is_pinned

    assert losses(made, batches()) == want
    assert len(seen) <= 8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader(made: tuple[Trainer, Any], workers: int) -> None:
    def loader(**options: Any) -> Any:
        draws = torch.Generator().manual_seed(1)
        return DataLoader(Samples(), BATCH, shuffle=True, generator=draws, **options)

    want = losses(made, plain(loader()))
    found = losses(made, loader(
        pin_memory=True, num_workers=workers,
        multiprocessing_context="forkserver" if workers else None,
    ))  # fmt: skip
    assert found == want


def test_pinned_memory_that_is_written_over(made: tuple[Trainer, Any]) -> None:
    """By who made it, as soon as the next batch is asked for."""
    images = Samples().images
    pinned, labels = torch.empty(BATCH, 3, SIDE, SIDE).pin_memory(), np.arange(BATCH) % 5

    def batches(to: Any) -> Iterator[dict[str, Any]]:
        for step in range(STEPS):
            to.copy_(images[step % 3 * BATCH :][:BATCH])
            yield {"input": to, "labels": labels}
            to.fill_(torch.nan)

    want = losses(made, batches(torch.empty(BATCH, 3, SIDE, SIDE)))
    assert losses(made, batches(pinned)) == want
