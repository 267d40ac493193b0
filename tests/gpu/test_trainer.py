"""Training on a device: beside the CPU's and PyTorch's, in every optimizer and precision."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as fn

from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training import state
from relay_wgrad.training.gpu import lacking
from relay_wgrad.training.graph_replay import Repeated
from relay_wgrad.training.optim import OPTIMIZERS
from relay_wgrad.training.options import Options
from relay_wgrad.training.trainer import Trainer
from relay_wgrad.training.update import Update
from tests.support.gpu.growth import grown, taken
from tests.support.trained import same

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

EXACT = Options(tf32=False)
RATES = {"sgd": 0.05, "momentum": 0.02, "adam": 0.003}


class Net(nn.Module):
    """A stem with pooling, a residual block, a depthwise layer, a head."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        )
        self.one = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, groups=width),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(width, 7))

    def forward(self, x: Any) -> Any:
        x = fn.max_pool2d(torch.relu(self.stem(x)), 2)
        x = torch.relu(x + self.one(x))
        return self.head(x.mean((2, 3)))


@functools.cache
def net(batch: int = 8, dropout: str = "off") -> tuple[nn.Module, TrainingGraph]:
    torch.manual_seed(3)
    module = Net()
    return module, from_torch(module, (torch.zeros(batch, 3, 16, 16),), dropout=dropout)


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


_made: dict[Any, tuple[Trainer, Any]] = {}


def trainer(device: str, batch: int = 8, dropout: str = "off", **options: Any) -> Trainer:
    """A trainer as it was when it was new: each is compiled once, and there is one of each."""
    key = (device, batch, dropout, *sorted(options.items(), key=str))
    if key not in _made:
        options = {"optimizer": "momentum", "lr": 0.02, "on_gpu": EXACT} | options
        new = Trainer(net(batch, dropout)[1], device, **options)
        _made[key] = new, snapshot(new)
    one, start = _made[key]
    one.set_state(**copy.deepcopy(start))
    return one


def snapshot(one: Trainer) -> dict[str, Any]:
    return {
        "params": {name: value.numpy() for name, value in one.params.items()},
        "state": [value.numpy() for value in one.state],
        "steps": one.steps, "skipped": one.skipped, "good_steps": one.good_steps,
        "loss_scale": one.loss_scale,
    }  # fmt: skip


def batches(count: int, batch: int = 8) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    made = []
    for _ in range(count):
        labels = rng.integers(0, 7, batch)
        x = rng.standard_normal((batch, 3, 16, 16)).astype("float32")
        made.append({"x": x + labels[:, None, None, None].astype("float32") / 3, "labels": labels})
    return made


def torchs(optimizer: str, given: list[dict[str, Any]]) -> list[float]:
    twin = copy.deepcopy(net()[0]).double().train()
    twin.head[0] = nn.Identity()
    rate = RATES[optimizer]
    if optimizer == "adam":
        rule: Any = torch.optim.Adam(twin.parameters(), lr=rate)
    else:
        rule = torch.optim.SGD(twin.parameters(), lr=rate, momentum=0.9 * (optimizer == "momentum"))
    losses = []
    for one in given:
        rule.zero_grad()
        loss = fn.cross_entropy(twin(torch.tensor(one["x"]).double()), torch.tensor(one["labels"]))
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return losses


# What is compiled, which takes most of the time: as few and as different as can be.
PLAIN: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "momentum", "lr": RATES["momentum"]},
    "adam": {"optimizer": "adam", "lr": RATES["adam"]},
    "sgd": {"optimizer": "sgd", "lr": RATES["sgd"], "layout": "NCHW"},
}
DYNAMIC = {"dtype": "float16", "loss_scale": "dynamic"}
BFLOAT = {"dtype": "bfloat16", "dropout": "mask"}


@pytest.mark.parametrize("optimizer", sorted(PLAIN))
def test_losses_are_the_cpus_and_pytorchs(optimizer: str) -> None:
    given = batches(12)
    options = PLAIN[optimizer]
    on_gpu = trainer("auto" if optimizer == "sgd" else "cuda", **options)
    on_cpu = trainer("cpu", **options)
    (_, ours), (_, theirs) = (one.gradients(given[0]) for one in (on_gpu, on_cpu))
    for name, a, b in zip(on_gpu.graph.trainable, ours, theirs, strict=True):
        np.testing.assert_allclose(
            a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5 * abs(b.numpy()).max(), err_msg=name
        )
    got, want = list(on_gpu.train(given)), list(on_cpu.train(given))
    np.testing.assert_allclose(got, want, rtol=1e-4)
    np.testing.assert_allclose(got, torchs(optimizer, given), rtol=1e-4)
    assert got[-1] < got[0]
    for name, value in on_gpu.params.items():
        np.testing.assert_allclose(
            value.numpy(), on_cpu.params[name].numpy(), rtol=5e-3, atol=1e-3, err_msg=name
        )
    assert on_gpu.steps == on_cpu.steps == 12
    assert on_gpu.place.name == "cuda:0"
    assert {c.source.partition(".")[0] for c in on_gpu.compiled.convolutions} == {"cudnn"}


UPDATES = {
    "adamw": Update(
        weight_decay=0.1, clip_norm=0.3, clip_value=0.05, schedule="cosine(steps=12, warmup=3)"
    ),
    "momentum": Update(weight_decay=0.01, ema=0.9, schedule="step(every=4, by=0.5)"),
}


@pytest.mark.parametrize("optimizer", UPDATES)
def test_updates_are_the_cpus(optimizer: str) -> None:
    """A rate for each step, in a captured graph too; averages, which no kernel of ours has."""
    assert {*UPDATES, *PLAIN} == {*OPTIMIZERS}
    given = batches(12)
    rate = RATES[optimizer.removesuffix("w")]
    options = {"optimizer": optimizer, "lr": rate, "update": UPDATES[optimizer]}
    both = [trainer(device, **options) for device in ("cuda", "cpu")]
    got, want = (list(one.train(given)) for one in both)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    pairs = [(one.params, one.averages if one.update.ema else {}) for one in both]
    for ours, theirs in zip(*pairs, strict=True):
        for name, value in ours.items():
            np.testing.assert_allclose(
                value.numpy(), theirs[name].numpy(), rtol=5e-3, atol=1e-3, err_msg=name
            )
    assert both[0].place.notes == []  # it is one graph


@pytest.mark.parametrize("options", [DYNAMIC, BFLOAT], ids=["f16", "bf16"])
def test_half_precision(options: dict[str, Any]) -> None:
    given = batches(12)
    both = [trainer(device, **options) for device in ("cuda", "cpu")]
    got, want = (list(one.train(given)) for one in both)
    np.testing.assert_allclose(got, want, rtol=0.03)
    assert both[0].loss_scale == both[1].loss_scale
    assert got[-1] < got[0]


def test_overflow_leaves_out_the_update() -> None:
    """From a scale at which float16 overflows, until it does not; with float32 sums of weights'
    gradients, as a CPU has them, for half ones overflow at smaller scales."""
    wide = Options(tf32=False, wide=True)
    both = [trainer(device, on_gpu=wide, **DYNAMIC) for device in ("cuda", "cpu")]
    given = batches(24)
    for one in both:
        one.loss_scale = 2.0**30
    before = snapshot(both[0])["params"]
    both[0].step(given[0])
    after = snapshot(both[0])
    assert (after["skipped"], after["loss_scale"], int(after["state"][0])) == (1, 2.0**29, 0)
    trainable = both[0].graph.trainable
    assert all(np.array_equal(before[name], after["params"][name]) for name in trainable)
    statistics = both[0].graph.updates.values()
    assert all((before[name] != after["params"][name]).any() for name in statistics)
    both[1].step(given[0])
    for one in both:
        list(one.train(given[1:]))
    facts = [(one.skipped, one.loss_scale, one.good_steps, one.steps) for one in both]
    assert facts[0] == facts[1]
    assert 1 < facts[0][0] < 20
    assert int(both[0].state[0].numpy()) == 24 - facts[0][0]


@pytest.mark.parametrize("options", [PLAIN["adam"], DYNAMIC, BFLOAT], ids=["adam", "f16", "bf16"])
def test_resumed_is_uninterrupted(options: dict[str, Any]) -> None:
    given = batches(20)
    one = trainer("cuda", **options)
    first = list(one.train(given[:9], check_every=4))
    kept = snapshot(one)
    want = list(one.train(given[9:], check_every=3))
    end = snapshot(one)

    one = trainer("cuda", **options)  # the same one, as it was
    assert list(one.train(given[:9])) == first
    assert same(snapshot(one), kept)
    assert [one.step(batch) for batch in given[9:]] == want  # each waited for: the same bits
    assert same(snapshot(one), end)
    if options is DYNAMIC:  # another program of the same network
        one = Trainer(net()[1], "cuda", optimizer="momentum", lr=0.02, on_gpu=EXACT, **DYNAMIC)
        one.set_state(**copy.deepcopy(kept))
        assert list(one.train(given[9:])) == want
        assert same(snapshot(one), end)


@pytest.mark.parametrize("options", [PLAIN["adam"], DYNAMIC, BFLOAT], ids=["adam", "f16", "bf16"])
def test_a_graph_is_the_calls(options: dict[str, Any]) -> None:
    """Bit for bit, in place, also where updates are left out and where a state is set between."""
    given = batches(20)
    one = trainer("cuda", **options)
    repeated = one._sized.last.step
    assert isinstance(repeated, Repeated)
    runs = {}
    for step in (repeated.plain, repeated):
        one = trainer("cuda", **options)  # the same one, as it was
        one._sized.last.step = step
        if options is DYNAMIC:
            one.loss_scale = 2.0**28
        first = list(one.train(given[:12], check_every=3))
        kept = snapshot(one)
        list(one.train(given[12:14]))
        one.set_state(**copy.deepcopy(kept))
        rest = list(one.train(given[12:]))
        runs[step] = first + rest, snapshot(one)
    (called, after_calls), (graphed, after_graph) = runs.values()
    assert repeated.is_graph, one.place.notes
    assert graphed == called
    assert same(after_graph, after_calls)
    places = [t.data_ptr() for t in (*one.params.all, *one._state)]
    list(one.train(given[:3]))
    assert places == [t.data_ptr() for t in (*one.params.all, *one._state)]


def test_two_thousand_steps_take_no_more_memory() -> None:
    given, one, found = batches(4), trainer("cuda", **PLAIN["momentum"]), []
    for count in (200, 1800):
        for _ in one.train(given[i % 4] for i in range(count)):
            pass
        found.append(taken())
    assert grown(*found) == [], found


def test_without_graphs() -> None:
    options = PLAIN["momentum"]
    one = trainer("cuda", **options, on_gpu=Options(tf32=False, graph=False))
    assert not isinstance(one._sized.last.step, Repeated)
    want = list(one.train(batches(6)))
    assert list(trainer("cuda", **options).train(batches(6))) == want
    # All parameters in a few kernels, in place.
    direct = {entry.function for entry in one.compiled.direct if entry.op == "updates"}
    assert direct >= {"optimizer", "not_finite"}


def test_states_go_from_device_to_device(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    given = batches(10)
    path = tmp_path / "state.safetensors"
    for source, target in (("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")):
        one = trainer(source, **PLAIN["momentum"])
        list(one.train(given[:5]))
        state.save(one, path)
        kept = snapshot(one)
        want = list(one.train(given[5:]))
        other = trainer(target, **PLAIN["momentum"])
        state.restore(other, path)
        assert same(snapshot(other), kept)
        got = list(other.train(given[5:]))
        np.testing.assert_allclose(got, want, rtol=1e-3 if source != target else 0)


def test_a_second_trainer_with_another_batch_and_without_a_library() -> None:
    """Kernels are generated where no library is asked."""
    one = trainer("cuda", **PLAIN["momentum"])
    want = list(one.train(batches(4)))
    one = trainer("cuda", **PLAIN["momentum"])  # the same one, as it was
    other = trainer("cuda", batch=3, on_gpu=Options(backends=()), **PLAIN["momentum"])
    got, more = [], []
    for first, second in zip(batches(4), batches(4, 3), strict=True):
        got.append(one.step(first))
        more.append(other.step(second))
    assert got == want
    on_cpu = trainer("cpu", batch=3, **PLAIN["momentum"])
    np.testing.assert_allclose(more, list(on_cpu.train(batches(4, 3))), rtol=1e-4)
    assert {c.source.partition(" ")[0] for c in other.compiled.convolutions} == {"cuda"}


def test_what_there_is() -> None:
    assert lacking() == []
    one = trainer("cuda", **PLAIN["momentum"])
    assert all(value.device == tvm.cuda(0) for value in one.params.values())
    assert one.place.memory is not None
    free, total = one.place.memory()
    assert 0 < free < total
    assert sum(one.profile(batches(1)[0]).values()) > 0
    assert one.compiled.plans()
    assert one.compiled.planned_bytes > 0
    with pytest.raises(ValueError, match="there is no GPU 99"):
        Trainer(net()[1], "cuda:99")


def test_a_loss_that_is_not_finite_stops_at_its_step() -> None:
    given = batches(16)
    one = trainer("cuda", **PLAIN["momentum"])
    first, before = list(one.train(given[:6])), snapshot(one)
    rest = list(one.train(given[6:]))
    one = trainer("cuda", **PLAIN["momentum"])  # the same one, as it was
    broken = copy.deepcopy(given)
    broken[6]["x"][0, 0, 0, 0] = np.inf
    losses: list[float] = []
    with pytest.raises(FloatingPointError, match=r"^step 7: the loss is nan; the parameters are"):
        losses.extend(one.train(broken, check_every=3))
    assert losses == first
    assert same(snapshot(one), before)
    assert list(one.train(given[6:])) == rest  # it goes on


def test_a_parameter_that_is_not_finite_is_named() -> None:
    one = trainer("cuda", **PLAIN["momentum"])
    name = next(iter(one.graph.updates.values()))  # training does not read it
    hidden = one.params[name].numpy()
    hidden[1] = np.nan
    one.params[name] = tvm.runtime.tensor(hidden)
    with pytest.raises(FloatingPointError, match=f"1 of 16 values of the parameter {name!r}"):
        list(one.train(batches(40)))


def test_who_stops_asking_leaves_a_whole_state() -> None:
    given = batches(30)
    one = trainer("cuda", **PLAIN["momentum"])
    for index, _ in enumerate(one.train(iter(given), check_every=2)):
        if index == 3:
            break
    count = one.steps
    assert 4 <= count <= 8
    left = snapshot(one)
    one = trainer("cuda", **PLAIN["momentum"])  # the same one, as it was
    list(one.train(given[:count]))
    assert same(snapshot(one), left)
