"""`TrainingStep` under PyTorch's wrappers in several processes, beside one that has whole batches.

Run by `run_ranks` of `tests.support.processes`, with names of `CHECKS`.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

import relay_wgrad
import relay_wgrad.torch as rt
from relay_wgrad.torch.backward_part import BackwardPart

STEPS, SIZE = 6, 2
LAYER = (64, 64)
"""Bytes of a piece of the backward pass: each layer is one."""


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 8),
        torch.nn.ReLU(), torch.nn.Linear(8, 3),
    ).double()  # fmt: skip


def batches(whole: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    draws = torch.Generator().manual_seed(1)
    part = slice(None) if whole else slice(SIZE * rank, SIZE * rank + SIZE)
    return [
        (torch.randn(SIZE * world, 2, 4, 4, generator=draws, dtype=torch.float64)[part],
         torch.randint(0, 3, (SIZE * world,), generator=draws)[part])
        for _ in range(STEPS)
    ]  # fmt: skip


def train(model: torch.nn.Module, *, whole: bool = False, every: int = 1) -> None:
    """`every`: steps whose gradients add up before an update; the last of them is exchanged."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for count, (x, y) in enumerate(batches(whole), start=1):
        last = count % every == 0
        alone = getattr(model, "no_sync", contextlib.nullcontext)
        with contextlib.nullcontext() if last else alone():
            torch.nn.functional.cross_entropy(model(x), y).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def step_of(made: torch.nn.Module) -> rt.TrainingStep:
    return rt.TrainingStep(made, batches(False)[0][0], piece_bytes=LAYER)


def compare(got: torch.nn.Module, want: torch.nn.Module) -> None:
    for a, b in zip(got.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def whole_batches(every: int = 1) -> torch.nn.Module:
    alone = module()
    train(alone, whole=True, every=every)
    return alone


def with_options(**options: Any) -> None:
    made = module()
    train(DistributedDataParallel(step_of(made), **options))
    compare(made, whole_batches())


def default() -> None:
    """Pieces of 1 and 25 MiB; a smaller network is one, and one process's is so at any size."""
    made = module()
    train(DistributedDataParallel(rt.TrainingStep(made, batches(False)[0][0])))
    compare(made, whole_batches())
    wide = torch.nn.Sequential(torch.nn.Linear(4, 1024), torch.nn.Linear(1024, 512))
    with events() as seen:
        rt.TrainingStep(wide, torch.zeros(1, 4))(torch.zeros(1, 4)).sum().backward()
    assert seen == ["piece 0", "piece 1"]


@contextlib.contextmanager
def events() -> Iterator[list[str]]:
    """The pieces of backward passes that run, and what else is noted."""
    seen, gradients = list[str](), BackwardPart.gradients

    def noted(self: BackwardPart, number: int, *given: Any) -> Any:
        seen.append(f"piece {number}")
        return gradients(self, number, *given)

    BackwardPart.gradients = noted  # type: ignore[method-assign]
    yield seen
    BackwardPart.gradients = gradients  # type: ignore[method-assign]


def overlap() -> None:
    """A bucket is on its way before the next piece runs, as soon as PyTorch has cut buckets by the
    order in which gradients came in the first step."""
    made = module()
    parallel = DistributedDataParallel(step_of(made), bucket_cap_mb=LAYER[0] / 2**20)
    with events() as seen:

        def sent(bucket: Any) -> Any:
            seen.append(f"bucket {bucket.index()}")
            return allreduce_hook(None, bucket)

        # PyTorch reads a hook's annotations, which are no texts to it.
        parallel.register_comm_hook(None, lambda state, bucket: sent(bucket))
        train(parallel)
    compare(made, whole_batches())
    starts = [i for i, what in enumerate(seen) if what == "piece 0"]
    assert len(starts) == STEPS
    for start, end in itertools.pairwise([*starts[1:], len(seen)]):
        step = seen[start:end]
        for number in (1, 2):
            assert f"bucket {number - 1}" in step[: step.index(f"piece {number}")], step


def no_sync() -> None:
    made = module()
    train(DistributedDataParallel(step_of(made)), every=2)
    compare(made, whole_batches(every=2))


def rounded(hook: Any, error: float, **options: Any) -> None:
    """Gradients that a hook rounds on their way, beside PyTorch's with the same hook."""
    found = []
    for is_ours in (True, False):
        made = module()
        parallel = DistributedDataParallel(step_of(made) if is_ours else made, **options)
        # By its name PyTorch leaves bfloat16's to NCCL, though Gloo adds such numbers too.
        parallel.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
        train(parallel)
        found.append(made)
    ours, theirs = found
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=error, atol=error)  # a rounding may go either way


def sharded() -> None:
    """Parameters in shards that PyTorch gathers around each call."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    made = module()
    step = step_of(made)
    fully_shard(step, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    train(step)
    for a, b in zip(step.parameters(), whole_batches().parameters(), strict=True):
        torch.testing.assert_close(a.full_tensor(), b, rtol=1e-12, atol=1e-12)  # type: ignore[attr-defined]


def flattened() -> None:
    """The older FSDP, of parameters that stay parameters; of others it is refused."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    made, cpu = module(), torch.device("cpu")
    parallel = FullyShardedDataParallel(step_of(made), device_id=cpu, use_orig_params=True)
    train(parallel)
    with FullyShardedDataParallel.summon_full_params(parallel):
        compare(made, whole_batches())
    views = FullyShardedDataParallel(step_of(module()), device_id=cpu)
    with pytest.raises(ValueError, match="TrainingStep: FullyShardedDataParallel needs use_orig"):
        train(views)


CHECKS: dict[str, Callable[[], None]] = {
    "no_sync": no_sync,
    "overlap": overlap,
    "default": default,
    "find_unused_parameters": lambda: with_options(find_unused_parameters=True),
    "rebuilt buckets": lambda: with_options(bucket_cap_mb=1e-4),
    "gradient_as_bucket_view": lambda: with_options(gradient_as_bucket_view=True),
    "static_graph": lambda: with_options(static_graph=True),
    "float16 on the way": lambda: rounded(fp16_compress_hook, 1e-3),
    "bfloat16 on the way": lambda: rounded(bf16_compress_hook, 1e-2),
    "bfloat16 in views of static buckets": lambda: rounded(
        bf16_compress_hook, 1e-2, static_graph=True, gradient_as_bucket_view=True
    ),
    "fully_shard": sharded,
    "FullyShardedDataParallel": flattened,
}


def main(*names: str) -> None:
    relay_wgrad.register()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        CHECKS[name]()
        print(f"{name}: as one process", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
