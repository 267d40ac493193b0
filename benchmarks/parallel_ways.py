"""One of the processes of a row of `benchmarks gpu parallel`; the first prints the row's figures.

python benchmarks/parallel_ways.py '{"model": …, "way": …, …}'    with a launcher's environment
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.child import end_with_parent
from benchmarks.gpu_models import Built, build
from benchmarks.gpu_sides import cast, settings
from relay_wgrad.training.processes import launched_rank

ROUNDS, STEPS, WARM = 3, 20, 14  # a graph is captured some steps after the first
TRACED = 3
ALONE, TOGETHER = "alone", "together"
Train = Callable[[int], None]
"""So many steps, which may be on their way when it returns."""


class Problem(NamedTuple):
    """What is measured; `batch` is a process's, `alone` a GPU's that trains for itself, if it is
    another; `image` None the model's own size.  On "cpu" processes meet by Gloo: a rehearsal."""

    model: str
    way: str
    batch: int
    image: int | None
    dtype: str
    device: str = "cuda"
    alone: int | None = None

    def batch_of(self, name: str) -> int:
        """A process's, alone or together."""
        return self.alone or self.batch if name == ALONE else self.batch


class Here(NamedTuple):
    """What a process trains on; `notes` is what a way says of itself."""

    problem: Problem
    built: Built
    device: torch.device
    rank: int
    notes: list[str]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- PyTorch's own loop --------------------------------------------------------------------------


def _batch(here: Here, name: str, channels_last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(here.rank)
    size, image = here.problem.batch_of(name), here.built.image
    x = torch.randn(size, 3, image, image, generator=draws).to(here.device)
    labels = torch.randint(0, here.built.classes, (size,), generator=draws)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return x.contiguous(memory_format=layout), labels.to(here.device)


def _loop(here: Here, loss: Callable[..., Any], parameters: Iterable[Any], batch: Any) -> Train:
    """PyTorch's loop with SGD's update."""
    optimizer = torch.optim.SGD([*parameters], lr=1e-3, momentum=0.9, fused=True)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with cast(here.device.type, here.problem.dtype):
                made = loss(*batch)
            made.backward()
            optimizer.step()

    return train


def _step(here: Here) -> Iterator[tuple[str, Train]]:
    import relay_wgrad
    import relay_wgrad.torch as rt

    relay_wgrad.register()
    module = here.built.module.to(here.device)
    for name, size in ((ALONE, 0), (TOGETHER, None)):  # alone in one piece
        batch = _batch(here, name, False)
        with cast(here.device.type, here.problem.dtype):
            step = rt.TrainingStep(module, batch[0], loss="cross_entropy", piece_bytes=size)
        called: Any = step
        if name == TOGETHER:
            called = DistributedDataParallel(step, gradient_as_bucket_view=True)
        yield name, _loop(here, called, step.parameters(), batch)
        if not step.captured and here.device.type == "cuda":
            here.notes.append(f"{name}: calls are no CUDA graphs")


def _pytorch(here: Here, compiles: bool) -> Iterator[tuple[str, Train]]:
    made = here.built.module.to(here.device).to(memory_format=torch.channels_last)
    for name, model in ((ALONE, made), (TOGETHER, None)):
        batch = _batch(here, name, True)
        whole = model or DistributedDataParallel(made, gradient_as_bucket_view=True)
        called: Any = torch.compile(whole, dynamic=False) if compiles else whole

        def loss(x: torch.Tensor, labels: torch.Tensor, called: Any = called) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(called(x), labels)

        yield name, _loop(here, loss, made.parameters(), batch)


# ---- ours ----------------------------------------------------------------------------------------


def _trainer(here: Here) -> Iterator[tuple[str, Train]]:
    import relay_wgrad
    from relay_wgrad.frontend import from_torch
    from relay_wgrad.training.options import Options
    from relay_wgrad.training.trainer import Trainer

    relay_wgrad.register()
    image, dtype = here.built.image, {"bf16": "bfloat16"}.get(here.problem.dtype)
    for name in (ALONE, TOGETHER):
        x = torch.zeros(here.problem.batch_of(name), 3, image, image)
        net = here.built.graph or from_torch(here.built.module, (x,))
        batch = net.random_batch(here.rank)
        made = Trainer(
            net, str(here.device), lr=1e-3, dtype=dtype, distributed=name == TOGETHER,
            on_gpu=Options(benchmark=True),
        )  # fmt: skip

        def train(steps: int, made: Trainer = made, batch: Any = batch) -> None:
            for _ in made.train(itertools.repeat(batch, steps)):
                pass

        yield name, train
        here.notes.extend(f"{name}: {note}" for note in made.place.notes)


WAYS: dict[str, Callable[[Here], Iterator[tuple[str, Train]]]] = {
    "step": _step,
    "compile": lambda here: _pytorch(here, True),
    "eager": lambda here: _pytorch(here, False),
    "trainer": _trainer,
}


# ---- figures -------------------------------------------------------------------------------------


def _speeds(train: Train, here: Here, steps: int) -> list[float]:
    """Steps a second, in rounds that all processes begin together."""
    found = []
    for _ in range(ROUNDS):
        wait(here.device)
        dist.barrier()
        began = time.perf_counter()
        train(steps)
        wait(here.device)
        found.append(steps / (time.perf_counter() - began))
    return found


Spans = list[tuple[float, float]]


def _total(spans: Sequence[tuple[float, float]]) -> float:
    """Of all moments in which there is one of them."""
    total, end = 0.0, -float("inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def exposed(nccl: Spans, others: Spans) -> float:
    """How long some of the first ran, and none of the second."""
    return _total([*nccl, *others]) - _total(others)


LONG_GAP = 5e-3
"""Milliseconds between two kernels that are more than a graph's own."""


def gaps(kernels: Iterable[tuple[float, float, str]]) -> Counter[str]:
    """How long none ran, by the kernels before and after; short ones are one sum."""
    found, end, before = Counter[str](), float("inf"), ""
    for first, last, name in sorted(kernels):
        gap = first - end
        if gap > 0:
            found[f"{before[:60]} .. {name[:60]}" if gap > LONG_GAP else "short"] += gap
        if last > end or not before:
            end, before = last, name
    return found


class Trace(NamedTuple):
    """Of a step, in milliseconds: kernels by their names, when some kernel ran, NCCL's, what of
    these nothing else ran beside, and when none ran (`gaps`)."""

    kernels: Counter[str]
    busy: float
    nccl: float
    exposed: float
    gaps: Counter[str]


def _traced(train: Train, here: Here) -> Trace:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        train(TRACED)
        wait(here.device)
    nccl, others, kernels, named = Spans(), Spans(), Counter[str](), []
    for event in profiler.profiler.kineto_results.events():
        is_kernel = not event.name().startswith(("Memcpy", "Memset"))
        if is_kernel and event.device_type() == torch.autograd.DeviceType.CUDA:
            start, length = event.start_ns() / 1e6, event.duration_ns() / 1e6
            some = nccl if "nccl" in event.name().lower() else others
            some.append((start, start + length))
            kernels[event.name()] += length / TRACED
            named.append((start, start + length, event.name()))
    found = (_total([*nccl, *others]), _total(nccl), exposed(nccl, others))
    between = Counter({name: ms / TRACED for name, ms in gaps(named).items()})
    return Trace(kernels, *(ms / TRACED for ms in found), between)


def _longest(some: Counter[str]) -> dict[str, float]:
    return {name: round(ms, 3) for name, ms in some.most_common(8)}


def _growth(traces: dict[str, Trace]) -> dict[str, Any]:
    """What a step has more of together than alone."""
    alone, together = traces[ALONE], traces[TOGETHER]
    more = together.kernels.copy()
    more.subtract(alone.kernels)
    return {
        "busy_ms": together.busy, "busy_alone_ms": alone.busy, "nccl_ms": together.nccl,
        "exposed_ms": together.exposed,
        "more_ms": {name[:80]: round(ms, 3) for name, ms in more.most_common(16)},
        "gaps_ms": {name: _longest(trace.gaps) for name, trace in traces.items()},
    }  # fmt: skip


def figures(problem: Problem, rank: int, steps: int = STEPS, warm: int = WARM) -> dict[str, Any]:
    """The row's, the same in each process."""
    device = torch.device(problem.device, rank) if problem.device == "cuda" else torch.device("cpu")
    settings(problem.dtype)
    if device.type == "cuda":
        from tests.support.gpu.runner import choose_compiler

        choose_compiler()
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    built = build(problem.model, problem.batch, problem.image)
    here = Here(problem, built, device, rank, [])
    rounds, traces = dict[str, list[list[float]]](), dict[str, Trace]()
    for name, train in WAYS[problem.way](here):
        train(warm)
        mine = _speeds(train, here, steps)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        rounds[name] = every
        if device.type == "cuda":
            traces[name] = _traced(train, here)
    one, together = (
        problem.batch_of(name) * statistics.mean(map(max, rounds[name]))
        for name in (ALONE, TOGETHER)
    )
    dist.destroy_process_group()
    return {
        "one": one, "all": len(every) * together, "scaling": together / one,
        "ms": 1e3 * problem.batch / together, "rounds": rounds,
        **(_growth(traces) if traces else {}), **({"notes": here.notes} if here.notes else {}),
    }  # fmt: skip


def main(text: str, *steps: str) -> None:
    end_with_parent()
    rank = launched_rank()
    assert rank is not None
    found = figures(Problem(**json.loads(text)), rank, *map(int, steps))
    if not rank:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
