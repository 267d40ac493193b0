"""What several processes do that train together; run by `run_ranks` of `tests.support.processes`.

Each of them makes the checks that it is given by name (`CHECKS`), a folder for files before them;
the first one compares with a trainer of its own that has whole batches.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import tvm

import relay_wgrad
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training import exchange, state
from relay_wgrad.training import trainer as trainer_module
from relay_wgrad.training.data import Data
from relay_wgrad.training.evaluation import Evaluator
from relay_wgrad.training.processes import Processes
from relay_wgrad.training.trainer import Trainer
from relay_wgrad.training.update import Update
from tests.support.cuda_stand_in import Repeating, runtime, stand_in
from tests.support.fast import FAST
from tests.support.trained import snapshot

SIZE = 4  # of a process's batch
LIMITS = exchange.LIMITS
Check = Callable[[Path], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(16, 5),
    ).double()  # fmt: skip


@functools.cache
def graph_of(
    loss: str = "cross_entropy", bn: str = "eval", batch: int | None = None
) -> TrainingGraph:
    """By default for any number of images: one program is for a process and for all of them."""
    x = torch.zeros(batch or 2, 2, 4, 4).double()
    return from_torch(network(), (x,), batch=None if batch else "N", loss=loss, bn=bn)


def samples(count: int, classes: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "input": rng.standard_normal((count, 2, 4, 4)), "labels": rng.integers(0, classes, count)
    }  # fmt: skip


def shard() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def data_of(graph: TrainingGraph, arrays: Any, *, whole: bool = False, **options: Any) -> Data:
    """A process's batches, or one process's that has all of them."""
    if whole:
        return Data(graph, arrays, size=SIZE * dist.get_world_size(), **options)
    return Data(graph, arrays, size=SIZE, shard=shard(), **options)


@functools.cache
def _trainer(graph: Callable[[], TrainingGraph], distributed: bool) -> tuple[Trainer, Any]:
    made = Trainer(graph(), FAST, distributed=distributed)
    return made, snapshot(made)


def fresh(*, alone: bool = False) -> tuple[TrainingGraph, Trainer]:
    """The network as it is without options, and a trainer at its beginning, compiled once."""
    trainer, start = _trainer(graph_of, not alone)
    trainer.set_state(**start)
    return trainer.graph, trainer


def tensors(trainer: Trainer) -> list[Any]:
    return [*(v.numpy() for v in trainer.params.values()), *(v.numpy() for v in trainer.state)]


def is_one(trainer: Trainer) -> bool:
    """Whether all processes have the same bits."""
    digest = hashlib.sha256(b"".join(t.tobytes() for t in tensors(trainer))).hexdigest()
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, digest)
    return len(set(found)) == 1


def close(one: Trainer, other: Trainer) -> None:
    for a, b in zip(tensors(one), tensors(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def both(one: Trainer, alone: Callable[[], Trainer], steps: int, data: dict[str, Any]) -> None:
    """Trains together and, in the first process, alone: the same losses, parameters, state."""
    batches = data_of(one.graph, **data)
    losses = list(one.train(batches.batch(step) for step in range(steps)))
    assert is_one(one)
    if dist.get_rank() == 0:
        other, whole = alone(), data_of(one.graph, **data, whole=True)
        want = list(other.train(whole.batch(step) for step in range(steps)))
        np.testing.assert_allclose(losses, want, rtol=1e-10)
        close(one, other)


def both_of(graph: TrainingGraph, steps: int, **options: Any) -> None:
    """`both`, of trainers with options."""
    one = Trainer(graph, FAST, distributed=True, **options)
    both(one, lambda: Trainer(graph, FAST, **options), steps, {"arrays": samples(40)})


@check
def fifty_steps(folder: Path) -> None:
    """With last batches that differ: of 21 samples two processes have 4, 4, and then 3 and 2."""
    arrays = {"arrays": samples(21), "drop_last": False}
    both(fresh()[1], lambda: fresh(alone=True)[1], 50, arrays)
    left = dist.get_world_size() * SIZE + 1
    with pytest.raises(ValueError, match="a last batch of 1 samples is less than one for each of"):
        data_of(graph_of(), samples(left), drop_last=False)


@check
def other_updates(folder: Path) -> None:
    update = Update(weight_decay=1e-3, clip_norm=1.0, ema=0.9, accumulate=2)
    both_of(graph_of(), 10, optimizer="adam", lr=0.01, update=update)


@contextlib.contextmanager
def sent(seen: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """How many numbers each all-reduce sends; `seen` is called before each."""
    found, all_reduce = list[int](), dist.all_reduce

    def counted(tensor: torch.Tensor, *given: Any, **more: Any) -> Any:
        found.append(tensor.numel())
        seen()
        return all_reduce(tensor, *given, **more)

    dist.all_reduce = counted
    yield found
    dist.all_reduce = all_reduce


@check
def sent_early(folder: Path) -> None:
    """Each bucket is on its way as soon as its last gradient is there; of gradients that are
    accumulated with the last batch of an update."""
    exchange.LIMITS = (1, 1)
    graph = graph_of("cross_entropy(label_smoothing=0.1)")
    data, buckets = data_of(graph, samples(40)), 1 + len(graph.trainable)
    for update in (Update(accumulate=2), Update()):
        trainer, events = Trainer(graph, FAST, distributed=True, update=update), list[str]()
        noted = functools.partial(_noted, events)
        for step in range(update.accumulate):
            events.clear()
            trainer.compiled.vm.set_instrument(noted)
            with sent(lambda: events.append("all-reduce")) as numbers:  # noqa: B023
                trainer.step(data.batch(step))
            trainer.compiled.vm.set_instrument(None)
            assert events.count("send") == buckets
            # All but the last are on their way when that is made, and kernels run in between.
            before = events[: len(events) - events[::-1].index("send")]
            is_last = step == update.accumulate - 1
            assert len(numbers) == (buckets if is_last else 1)
            assert before.count("all-reduce") == len(numbers) - is_last, events
            assert before[before.index("all-reduce") :].count("kernel") > 1, events
    arguments = trainer.arguments(data.batch(1))
    own = [x.numpy() for x in trainer.compiled.vm["main_adjoint"](*arguments)[1]]
    with sent() as numbers:
        trainer.profile(data.batch(1), rounds=1 + dist.get_rank(), seconds=0)
    assert not numbers
    means = [x.numpy() for x in trainer.gradients(data.batch(1))[1]]
    for mine, mean in zip(own, means, strict=True):
        every = torch.from_numpy(mine.copy())
        dist.all_reduce(every)
        np.testing.assert_allclose(mean, every.numpy() / dist.get_world_size(), rtol=1e-12)
        assert np.any(mine != mean)
    alone = Trainer(graph, FAST)
    both(trainer, lambda: stepped(alone, data_of(graph, samples(40), whole=True).batch(0)), 10,
         {"arrays": samples(40)})  # fmt: skip
    exchange.LIMITS = LIMITS


class Scaled(NamedTuple):
    """What NCCL multiplies and adds up, in a group of Gloo's."""

    factor: torch.Tensor


@check
def sent_scaled(folder: Path) -> None:
    """Buckets behind the first two are multiplied on their way, by shares of batches that differ,
    and gradients lie where they were added up; also in steps that are repeated."""
    all_reduce, scaled = dist.all_reduce, list[float]()

    def by_gloo(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, **more: Any) -> Any:
        if isinstance(op, Scaled):
            tensor.mul_(op.factor)
            scaled.append(float(op.factor))
            op = dist.ReduceOp.SUM
        return all_reduce(tensor, op, **more)

    exchange.LIMITS = (1, 1)
    with (
        mock.patch.object(Processes, "scales", True),
        mock.patch.object(exchange, "scaled_sum", Scaled),
        mock.patch.object(dist, "all_reduce", by_gloo),
    ):
        graph, arrays = graph_of(), samples(21)
        trainer = Trainer(graph, FAST, distributed=True)
        both(trainer, lambda: Trainer(graph, FAST), 10, {"arrays": arrays, "drop_last": False})
        assert len(scaled) == 10 * (len(graph.trainable) - 1)
        assert len(set(scaled)) > 1
        data = data_of(graph, arrays, drop_last=False)
        means = [x.numpy() for x in trainer.gradients(data.batch(0))[1]]
        kept = [x.copy() for x in means]
        trainer.step(data.batch(1))
        for mean, before in zip(means, kept, strict=True):
            np.testing.assert_array_equal(mean, before)
        both_of(graph, 6, update=Update(accumulate=2))
        work = Repeating()
        repeated, called = (graphed(folder, graph, w) for w in (work, None))
        losses = [list(t.train(data.batch(step) for step in range(10))) for t in (repeated, called)]
        assert losses[0] == losses[1]
        assert work.calls["launches"] > 0
        for a, b in zip(tensors(repeated), tensors(called), strict=True):
            np.testing.assert_array_equal(a, b)
    exchange.LIMITS = LIMITS


def _noted(events: list[str], func: Any, name: str, before: bool, *_: Any) -> int:
    if before and not name.startswith("vm."):
        events.append("send" if name == exchange.SEND else "kernel")
    return 0


def stepped(trainer: Trainer, batch: Any) -> Trainer:
    trainer.step(batch)
    return trainer


@check
def sent_in_order(folder: Path) -> None:
    """Buckets are exchanged in one order, whatever the order in which a program has them ready; and
    a step that ended on its way leaves nothing to the next one."""
    processes = Processes.join("cpu")
    one, world = exchange.Exchange(processes), processes.world
    values = [tvm.runtime.tensor(np.full(n, processes.rank + n, "float64")) for n in (3, 50)]
    for ends in (True, False):
        one.weigh(1.0)
        means = [tvm.runtime.tensor(np.full(n, np.nan)) for n in (3, 50)]
        with sent() as numbers:
            one.send(1, values[1:], means[1:])
            assert not numbers
            if ends:
                continue
            one.send(0, values[:1], means[:1])
        assert numbers[0] < numbers[1]
        one.finish()
        for n, mean in zip((3, 50), means, strict=True):
            np.testing.assert_allclose(mean.numpy(), (world - 1) / 2 + n, rtol=1e-12)


@check
def accumulated(folder: Path) -> None:
    """Gradients are sent once an update, and what counts differs from batch to batch; a state that
    is saved between two updates goes on in one process and in several."""
    arrays, update = samples(21), Update(accumulate=3)
    graph, path = graph_of("cross_entropy(ignore_index=2)"), folder / "accumulated.safetensors"
    trainer = Trainer(graph, FAST, distributed=True, update=update)
    data = data_of(graph, arrays, drop_last=False)
    count = sum(graph.params[name].size for name in graph.trainable)
    losses = []
    for step in range(9):
        with sent() as numbers:
            losses.append(trainer.step(data.batch(step)))
        assert (sum(numbers) >= count) is (step % 3 == 2)
        if step == 3:
            state.save(trainer, path)
    assert is_one(trainer)
    if dist.get_rank() == 0:
        alone = Trainer(graph, FAST, update=update)
        whole = data_of(graph, arrays, drop_last=False, whole=True)
        want = list(alone.train(whole.batch(step) for step in range(9)))
        np.testing.assert_allclose(losses, want, rtol=1e-10)
        close(trainer, alone)
        state.restore(alone, path)
        want = list(alone.train(whole.batch(step) for step in range(4, 9)))
        np.testing.assert_allclose(losses[4:], want, rtol=1e-10)
    after = tensors(trainer)
    dist.barrier()
    state.restore(trainer, path)
    for step in range(4, 9):
        trainer.step(data.batch(step))
    for a, b in zip(tensors(trainer), after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@check
def evaluation(folder: Path) -> None:
    """Each process has other parts; the last part is short."""
    graph = graph_of()
    data = Data(graph, samples(21), size=SIZE)
    want = Evaluator(graph, FAST)(graph.params, data)
    got = Evaluator(graph, FAST, distributed=True)(graph.params, data)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@check
def labels_that_count(folder: Path) -> None:
    """A mean over weights of labels, which processes have different sums of."""
    graph = graph_of("cross_entropy(ignore_index=2, weight=[1, 2, 1, 0.5, 3])")
    both_of(graph, 6)


@check
def labels_that_count_nothing(folder: Path) -> None:
    """All of a process's batch: its loss is 0 / 0, and the whole batch's is the others'.  Where it
    has a part in their statistics the step is an error."""
    world, rank = dist.get_world_size(), dist.get_rank()
    whole = samples(SIZE * world)
    whole["labels"] = np.where(np.arange(SIZE * world) < SIZE, whole["labels"] % 2, 2)
    mine = {name: value[rank * SIZE : (rank + 1) * SIZE] for name, value in whole.items()}
    loss = "cross_entropy(ignore_index=2)"
    graph = graph_of(loss)
    for options in ({}, {"update": Update(accumulate=2)}):
        trainer = Trainer(graph, FAST, distributed=True, **options)
        losses = [trainer.step(mine) for _ in range(6)]
        assert is_one(trainer)
        if rank == 0:
            alone = Trainer(graph, FAST, **options)
            np.testing.assert_allclose(losses, [alone.step(whole) for _ in range(6)], rtol=1e-9)
            close(trainer, alone)
    graph = graph_of(loss, bn="train", batch=SIZE)
    trainer = Trainer(graph, FAST, distributed=True, sync_batch_norm=True)
    with pytest.raises(FloatingPointError, match="the loss is nan in process 1"):
        trainer.step(mine)


@check
def sync_batch_norm(folder: Path) -> None:
    """In training a process's batch is normalized by all of it; running statistics are the same."""
    sizes = (SIZE, SIZE * dist.get_world_size())
    graph, whole = (graph_of(bn="train", batch=size) for size in sizes)
    one = Trainer(graph, FAST, distributed=True, sync_batch_norm=True)
    data = Data(graph, samples(48), shard=shard())
    losses = list(one.train(data.batch(step) for step in range(20)))
    assert is_one(one)
    if dist.get_rank() == 0:
        alone, batches = Trainer(whole, FAST), Data(whole, samples(48))
        want = list(alone.train(batches.batch(step) for step in range(20)))
        np.testing.assert_allclose(losses, want, rtol=1e-9)
        close(one, alone)
    with pytest.raises(ValueError, match="its batch is open; import it for a fixed"):
        Trainer(graph_of(bn="train"), FAST, distributed=True, sync_batch_norm=True)
    with pytest.raises(ValueError, match="has no batch normalization in training"):
        Trainer(graph_of(batch=SIZE), FAST, distributed=True, sync_batch_norm=True)
    with pytest.raises(ValueError, match="profile: a step with sync_batch_norm"):
        one.profile(data.batch(0))


@check
def not_finite(folder: Path) -> None:
    """One process's NaN ends the step in all of them, with the parameters as before."""
    graph, trainer = fresh()
    data = data_of(graph, samples(40))
    trainer.step(data.batch(0))
    before = tensors(trainer)
    batch = data.batch(1)
    if dist.get_rank() == 1:
        batch["input"][0, 0, 0, 0] = np.nan
    with pytest.raises(FloatingPointError, match="step 2: the loss is nan in process 1;"):
        trainer.step(batch)
    for a, b in zip(tensors(trainer), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(trainer.step(data.batch(1)))
    assert is_one(trainer)


@check
def overflow(folder: Path) -> None:
    """One process's gradient that overflows leaves the update out, and halves the scale, in all."""
    graph = from_torch(network().float(), (torch.zeros(2, 2, 4, 4),), batch="N", bn="eval")
    graph.params["p_0_weight"] = np.abs(graph.params["p_0_weight"])
    graph.params["p_4_weight"] = graph.params["p_4_weight"] * np.float32(100)
    batch = data_of(graph, {**samples(40), "input": np.ones((40, 2, 4, 4), "float32")}).batch(0)
    if dist.get_rank() == 0:  # nothing passes its ReLU, and so no gradient does
        batch["input"] *= np.float32(-1)
    skipped = []
    for distributed in (False, True):
        trainer = Trainer(
            graph, FAST, dtype="float16", loss_scale="dynamic", distributed=distributed
        )  # fmt: skip
        trainer.step(batch)
        skipped.append(trainer.skipped)
    assert skipped == [dist.get_rank() != 0, 1]
    assert trainer.loss_scale == 32768
    assert is_one(trainer)


class Root(torch.nn.Module):
    """Its gradient is infinite where its loss is not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = torch.nn.Linear(32, 4, bias=False), torch.nn.Linear(4, 5)
        torch.nn.init.constant_(self.inner.weight, 0.1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.sqrt(self.inner(x.flatten(1))))


@check
def gradient_not_finite(folder: Path) -> None:
    """At a loss scale of 1 it ends the step in all, and those are named that had it."""
    torch.manual_seed(0)
    graph = from_torch(Root(), (torch.zeros(SIZE, 2, 4, 4),))
    trainer = Trainer(graph, FAST, loss_scale="dynamic", distributed=True)
    trainer.loss_scale = 1.0
    before = tensors(trainer)
    batch = {"labels": np.arange(SIZE)}
    batch[graph.inputs[0].name] = np.full((SIZE, 2, 4, 4), dist.get_rank() == 0, "float32")
    others = ", ".join(str(rank) for rank in range(1, dist.get_world_size()))
    with pytest.raises(FloatingPointError, match=f"even at a loss scale of 1 in process {others};"):
        trainer.step(batch)
    for a, b in zip(tensors(trainer), before, strict=True):
        np.testing.assert_array_equal(a, b)


@check
def other_options(folder: Path) -> None:
    name = ("sgd", "momentum")[dist.get_rank() % 2]
    with pytest.raises(ValueError, match="process 0 has optimizer 'sgd', process 1 has 'momentum'"):
        Trainer(graph_of(), FAST, distributed=True, optimizer=name, lr=0.1)
    with pytest.raises(ValueError, match="process 0 has batches of 'input float64"):
        Trainer(graph_of(batch=2 + dist.get_rank()), FAST, distributed=True)
    with pytest.raises(ValueError, match="reduction='sum'"):
        Trainer(graph_of("cross_entropy(reduction='sum')"), FAST, distributed=True)
    graph, trainer = fresh()
    trainer._is_alike, trainer._kept.axes = False, {"p_0_weight": (dist.get_rank(), 1)}
    with pytest.raises(ValueError, match=r"process 0 has axes of parameters \{'p_0_weight'"):
        trainer._weigh(data_of(graph, samples(40)).batch(0))
    trainer._kept.axes = {}


@check
def parameters_of_the_first(folder: Path) -> None:
    graph, trainer = fresh()
    start = snapshot(trainer)
    start["params"]["p_0_bias"] = start["params"]["p_0_bias"] + dist.get_rank()
    trainer.set_state(**start)
    assert is_one(trainer)
    batch = data_of(graph, samples(40)).batch(0)
    _, gradients = trainer.gradients(batch)
    found = [gradient.numpy().copy() for gradient in gradients]
    assert trainer.loss(batch) == trainer.step(batch)
    trainer.step(batch)
    for gradient, before in zip(gradients, found, strict=True):
        np.testing.assert_array_equal(gradient.numpy(), before)


@check
def saved(folder: Path) -> None:
    """What two processes save, one goes on with, and two with what one saved."""
    graph, trainer = fresh()
    arrays, path = samples(40), folder / "state.safetensors"
    data = data_of(graph, arrays)
    list(trainer.train(data.batch(step) for step in range(3)))
    state.save(trainer, path)
    losses = list(trainer.train(data.batch(step) for step in range(3, 6)))
    if dist.get_rank() == 0:
        alone, whole = fresh(alone=True)[1], data_of(graph, arrays, whole=True)
        state.restore(alone, path)
        want = list(alone.train(whole.batch(step) for step in range(3, 6)))
        np.testing.assert_allclose(losses, want, rtol=1e-10)
        state.save(alone, folder / "alone.safetensors")
    after = tensors(trainer)
    dist.barrier()
    state.restore(trainer, folder / "alone.safetensors")
    assert is_one(trainer)
    for a, b in zip(tensors(trainer), after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@check
def full_disk(folder: Path) -> None:
    """The first process cannot write: all of them hear so, and training can go on."""
    graph, trainer = fresh()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="cannot be written") as caught:
            state.save(trainer, folder / "full.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ("in process 0" in str(caught.value)) == (dist.get_rank() != 0)
    assert not (folder / "full.safetensors").exists()
    trainer.step(data_of(graph, samples(40)).batch(0))


@contextlib.contextmanager
def as_on_gpus(folder: Path, work: Repeating | None) -> Iterator[None]:
    """Within it a trainer's steps go to a stand-in for a GPU, and are repeated by `work`."""
    own = folder / f"cudart_{dist.get_rank()}"
    own.mkdir(exist_ok=True)
    counted, join = runtime(own), Processes.join
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trainer_module, "place", lambda *_: stand_in(counted, work, target=FAST)
        )  # fmt: skip
        patch.setattr(Processes, "join", lambda _: join("cpu"))
        yield


def graphed(folder: Path, graph: TrainingGraph, work: Repeating | None, **options: Any) -> Trainer:
    with as_on_gpus(folder, work):
        return Trainer(graph, "cuda", distributed=True, **options)


@check
def graphs(folder: Path) -> None:
    """Bit for bit as without, where one process captures its steps and the other cannot, batches
    count differently, and the last ones are of other sizes."""
    exchange.LIMITS = (1, 1)
    short: dict[str, Any] = {"drop_last": False}
    update = Update(accumulate=3, clip_norm=1.0)
    labels, training = (
        graph_of("cross_entropy(weight=[1, 2, 1, 0.5, 3])"),
        graph_of(bn="train", batch=SIZE),
    )
    cases: list[tuple[TrainingGraph, dict[str, Any], dict[str, Any]]] = [
        (labels, {}, short), (labels, {"update": update}, short),
        (training, {"sync_batch_norm": True}, {}),
    ]  # fmt: skip
    for graph, options, how in cases:
        data = Data(graph, samples(21 if how else 48), size=None if graph is training else SIZE,
                    shard=shard(), **how)  # fmt: skip
        plain = graphed(folder, graph, None, **options)
        want = list(plain.train(data.batch(step) for step in range(24)))
        for refuses in (None, RuntimeError("not permitted")):
            work = Repeating(None if dist.get_rank() == 0 else refuses)
            one = graphed(folder, graph, work, **options)
            assert not one.place.notes
            assert list(one.train(data.batch(step) for step in range(24))) == want
            for a, b in zip(tensors(one), tensors(plain), strict=True):
                np.testing.assert_array_equal(a, b)
            assert is_one(one)
            assert (work.calls["launches"] > 0) is not bool(work.refuses)
            assert len(one.place.notes) == bool(work.refuses), one.place.notes
    exchange.LIMITS = LIMITS


@check
def not_finite_in_a_graph(folder: Path) -> None:
    """One process's NaN, while later steps are on their way, ends the training in all of them."""
    graph = graph_of()
    trainer = graphed(folder, graph, Repeating())
    data = data_of(graph, samples(40))
    batches = [data.batch(step) for step in range(30)]
    losses = list(trainer.train(batches[:6]))
    before = tensors(trainer)
    if dist.get_rank() == 1:
        batches[6] = {**batches[6], "input": np.full_like(batches[6]["input"], np.nan)}
    with pytest.raises(FloatingPointError, match="step 7: the loss is nan in process 1;"):
        losses += trainer.train(batches[6:])
    assert len(losses) == trainer.steps == 6
    for a, b in zip(tensors(trainer), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(trainer.step(data.batch(6)))
    assert is_one(trainer)


def killed(trainer: Trainer, steps: int) -> None:
    """The others hear at once that the last one has gone."""
    data = data_of(graph_of(), samples(40))
    list(trainer.train(data.batch(step) for step in range(steps)))
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match="another process has ended"):
        list(trainer.train(data.batch(step) for step in range(steps, steps + 5)))
    assert time.monotonic() - start < 30


@check
def one_is_killed(folder: Path) -> None:
    killed(fresh()[1], 1)


@check
def one_is_killed_in_a_graph(folder: Path) -> None:
    work = Repeating()
    killed(graphed(folder, graph_of(), work), 5)
    assert work.calls["launches"]


def main(folder: str, *names: str) -> None:
    relay_wgrad.register()
    torch.set_num_threads(1)
    Processes.join("cpu")
    for name in names:
        CHECKS[name](Path(folder))
        print(name, "is as it should be", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
