"""What processes with a GPU each do that train together; run by `run_ranks` of
`tests.support.processes`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import relay_wgrad
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training import exchange
from relay_wgrad.training.data import Data
from relay_wgrad.training.options import Options
from relay_wgrad.training.trainer import Trainer

SIZE, STEPS, CLASSES = 8, 20, 10


def graph_of(batch: int, bn: str) -> TrainingGraph:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, CLASSES),
    )  # fmt: skip
    return from_torch(module, (torch.zeros(batch, 3, 16, 16),), bn=bn)


def same_bits(trainer: Trainer) -> bool:
    mine = [value.numpy().tobytes() for value in trainer.params.values()]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return all(other == mine for other in found)


def main() -> None:
    """In float32, with batches that are normalized together, and in bfloat16."""
    relay_wgrad.register()
    exchange.LIMITS = (1 << 8, 1 << 10)  # some buckets
    exact, rng = Options(tf32=False), np.random.default_rng(0)
    for bn, dtype, tolerance in (
        ("eval", None, 1e-3), ("train", None, 1e-3), ("eval", "bfloat16", 3e-2),
    ):  # fmt: skip
        graph = graph_of(SIZE, bn)
        trainer = Trainer(
            graph, "cuda", lr=0.02, dtype=dtype, distributed=True, sync_batch_norm=bn == "train",
            on_gpu=exact,
        )  # fmt: skip
        rank, world = dist.get_rank(), dist.get_world_size()
        arrays = {
            graph.inputs[0].name: rng.standard_normal((96, 3, 16, 16), dtype=np.float32),
            "labels": rng.integers(0, CLASSES, 96),
        }
        data = Data(graph, arrays, shard=(rank, world))
        losses = list(trainer.train(data.batch(step) for step in range(STEPS)))
        assert same_bits(trainer)
        if rank == 0:
            whole = graph_of(SIZE * world, bn)
            alone = Trainer(whole, "cuda:0", lr=0.02, dtype=dtype, on_gpu=exact)
            batches = Data(whole, arrays)
            want = list(alone.train(batches.batch(step) for step in range(STEPS)))
            np.testing.assert_allclose(losses, want, rtol=tolerance)
        dist.barrier()
    dist.destroy_process_group()
    print("as one process")


if __name__ == "__main__":
    main()
