"""What processes with a GPU each do that train together; run by `run_ranks` of
`tests.support.processes`."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import relay_wgrad
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training import exchange
from relay_wgrad.training.data import Data
from relay_wgrad.training.graph_replay import Kinds, Repeated
from relay_wgrad.training.options import Options
from relay_wgrad.training.trainer import Trainer
from relay_wgrad.training.update import Update
from tests.support.gpu.growth import grown, taken
from tests.support.trained import same, snapshot

SIZE, STEPS, CLASSES = 8, 20, 10
MANY = 2000


@functools.cache
def graph_of(batch: int, bn: str, loss: str) -> TrainingGraph:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, CLASSES),
    )  # fmt: skip
    return from_torch(module, (torch.zeros(batch, 3, 16, 16),), bn=bn, loss=loss)


def same_bits(trainer: Trainer) -> bool:
    mine = [value.numpy().tobytes() for value in trainer.params.values()]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return all(other == mine for other in found)


def graphs_of(trainer: Trainer) -> list[Repeated]:
    step = trainer._sized.last.step
    made = list(step.steps.values()) if isinstance(step, Kinds) else [step]
    assert all(isinstance(one, Repeated) for one in made), trainer.place.notes
    return made  # type: ignore[return-value]


def as_called(trainer: Trainer, data: Data, start: Any, losses: list[float]) -> None:
    """Bit for bit what its kernels give when they are called one by one."""
    repeated, after = trainer._sized.last.step, snapshot(trainer)
    graphs = graphs_of(trainer)
    assert all(one.is_graph for one in graphs), trainer.place.notes
    trainer.set_state(**start)
    trainer._sized.last.step = graphs[0].plain
    assert list(trainer.train(data.batch(step) for step in range(STEPS))) == losses
    assert same(snapshot(trainer), after)
    trainer._sized.last.step = repeated


def stays(trainer: Trainer, data: Data) -> None:
    """Of steps that are repeated no more memory is taken."""
    found, batches = [], [data.batch(step) for step in range(4)]
    for count in (MANY // 10, MANY - MANY // 10):
        for _ in trainer.train(batches[step % 4] for step in range(count)):
            pass
        found.append(taken())
    assert grown(*found) == [], found


LOSS = "cross_entropy"
WEIGHED = f"{LOSS}(weight={[1.0 + i % 3 for i in range(CLASSES)]})"  # each batch counts differently
CASES: tuple[tuple[str, str, str | None, float | None, dict[str, Any]], ...] = (
    ("eval", WEIGHED, None, 1e-3, {}),
    ("train", LOSS, None, 1e-3, {"sync_batch_norm": True}),
    ("eval", WEIGHED, "bfloat16", 3e-2, {"update": Update(accumulate=3)}),
    ("eval", LOSS, "float16", None, {"loss_scale": "dynamic"}),
)
"""Normalization, loss, dtype, how near to one process with whole batches (None: that is not run),
and options."""


def main() -> None:
    """Beside one process, and beside the same steps without graphs."""
    relay_wgrad.register()
    exchange.LIMITS = (1 << 8, 1 << 10)  # some buckets
    exact, rng = Options(tf32=False), np.random.default_rng(0)
    for number, (bn, loss, dtype, tolerance, options) in enumerate(CASES):
        began = time.perf_counter()
        graph = graph_of(SIZE, bn, loss)
        trainer = Trainer(
            graph, "cuda", lr=0.02, dtype=dtype, distributed=True, on_gpu=exact, **options
        )
        rank, world = dist.get_rank(), dist.get_world_size()
        arrays = {
            graph.inputs[0].name: rng.standard_normal((96, 3, 16, 16), dtype=np.float32),
            "labels": rng.integers(0, CLASSES, 96),
        }
        data, start = Data(graph, arrays, shard=(rank, world)), snapshot(trainer)
        losses = list(trainer.train(data.batch(step) for step in range(STEPS)))
        assert same_bits(trainer)
        as_called(trainer, data, start, losses)
        if number == 0:
            stays(trainer, data)
            assert same_bits(trainer)
        if rank == 0 and tolerance is not None:
            whole = graph_of(SIZE * world, bn, loss)
            options.pop("sync_batch_norm", None)
            alone = Trainer(whole, "cuda:0", lr=0.02, dtype=dtype, on_gpu=exact, **options)
            batches = Data(whole, arrays)
            want = list(alone.train(batches.batch(step) for step in range(STEPS)))
            np.testing.assert_allclose(losses, want, rtol=tolerance)
        dist.barrier()
        print(bn, dtype, *options, f"{time.perf_counter() - began:.1f} s", flush=True)
    dist.destroy_process_group()
    print("as one process")


if __name__ == "__main__":
    main()
