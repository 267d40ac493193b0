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
from relay_wgrad.training.devices import Options, lacking
from relay_wgrad.training.trainer import OPTIMIZERS, Trainer

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
    """A trainer as it was when it was new: each is compiled once."""
    key = (device, batch, dropout, *sorted(options.items(), key=str))
    if key not in _made:
        options.setdefault("on_gpu", EXACT)
        new = Trainer(
            net(batch, dropout)[1], device, **{"optimizer": "momentum", "lr": 0.02} | options
        )
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


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    arrays = [[*s["params"].values(), *s["state"]] for s in (one, other)]
    equal = all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))
    return equal and all(one[key] == other[key] for key in one if key not in ("params", "state"))


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


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_losses_are_the_cpus_and_pytorchs(optimizer: str) -> None:
    given = batches(12)
    options = {"optimizer": optimizer, "lr": RATES[optimizer]}
    on_gpu, on_cpu = (trainer(device, **options) for device in ("cuda", "cpu"))
    got, want = list(on_gpu.train(given)), list(on_cpu.train(given))
    np.testing.assert_allclose(got, want, rtol=2e-4)
    np.testing.assert_allclose(got, torchs(optimizer, given), rtol=2e-3)
    assert got[-1] < got[0]
    for name, value in on_gpu.params.items():
        np.testing.assert_allclose(
            value.numpy(), on_cpu.params[name].numpy(), rtol=5e-3, atol=2e-3, err_msg=name
        )
    assert on_gpu.steps == on_cpu.steps == 12
    assert {c.source.partition(".")[0] for c in on_gpu.compiled.convolutions} == {"cudnn"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str) -> None:
    given = batches(12)
    scale = "dynamic" if dtype == "float16" else None
    both = [trainer(device, dtype=dtype, loss_scale=scale) for device in ("cuda", "cpu")]
    got, want = (list(one.train(given)) for one in both)
    np.testing.assert_allclose(got, want, rtol=0.05)
    np.testing.assert_allclose(got, list(trainer("cpu").train(given)), rtol=0.08)
    assert [one.loss_scale for one in both] == [65536.0 if scale else None] * 2


def test_overflow_leaves_out_the_update() -> None:
    """From a scale at which float16 overflows, until it does not."""
    both = [trainer(d, dtype="float16", loss_scale="dynamic") for d in ("cuda", "cpu")]
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


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam", "lr": 0.003},
        {"dtype": "float16", "loss_scale": "dynamic"},
        {"dtype": "bfloat16", "dropout": "mask"},
    ],
    ids=["adam", "f16", "bf16"],
)
def test_resumed_is_uninterrupted(options: dict[str, Any]) -> None:
    given = batches(20)
    whole = trainer("cuda", **options)
    first = list(whole.train(given[:9], check_every=4))
    kept = snapshot(whole)
    want = list(whole.train(given[9:], check_every=3))
    end = snapshot(whole)

    again = trainer("cuda", **options)
    assert list(again.train(given[:9])) == first
    again.set_state(**copy.deepcopy(kept))
    assert [again.step(one) for one in given[9:]] == want  # each waited for: the same bits
    assert same(snapshot(again), end)

    dropout = options.get("dropout", "off")
    rest = {key: value for key, value in options.items() if key != "dropout"}
    other = Trainer(net(8, dropout)[1], "cuda", on_gpu=EXACT,
                    **{"optimizer": "momentum", "lr": 0.02} | rest)  # fmt: skip
    other.set_state(**copy.deepcopy(kept))
    assert list(other.train(given[9:])) == want
    assert same(snapshot(other), end)


def test_states_go_from_device_to_device(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    given = batches(10)
    path = tmp_path / "state.safetensors"
    for source, target in (("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")):
        one = trainer(source)
        list(one.train(given[:5]))
        state.save(one, path)
        kept = snapshot(one)
        want = list(one.train(given[5:]))
        other = trainer(target)
        state.restore(other, path)
        assert same(snapshot(other), kept)
        got = list(other.train(given[5:]))
        np.testing.assert_allclose(got, want, rtol=1e-3 if source != target else 0)


def test_a_second_trainer_with_another_batch() -> None:
    one, other = trainer("cuda"), trainer("cuda", batch=3)
    want = list(one.train(batches(4)))
    one = trainer("cuda")
    got, more = [], []
    for first, second in zip(batches(4), batches(4, 3), strict=True):
        got.append(one.step(first))
        more.append(other.step(second))
    assert got == want
    np.testing.assert_allclose(more, list(trainer("cpu", batch=3).train(batches(4, 3))), rtol=2e-4)


def test_auto_takes_the_gpu() -> None:
    assert lacking() == []
    one = Trainer(net()[1], "auto", layout="NCHW")
    assert one.place.name == "cuda:0"
    assert one.params["stem_1_weight" if "stem_1_weight" in one.params else next(iter(one.params))]
    assert all(value.device == tvm.cuda(0) for value in one.params.values())
    free, total = one.place.memory() if one.place.memory else (0, 0)
    assert 0 < free < total
    losses = [one.step(batches(1)[0]) for _ in range(5)]
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="there is no GPU 99"):
        Trainer(net()[1], "cuda:99")


def test_a_loss_that_is_not_finite_stops_at_its_step() -> None:
    given = batches(16)
    want = trainer("cuda")
    first = list(want.train(given[:6]))
    one = trainer("cuda")
    broken = copy.deepcopy(given)
    broken[6]["x"][0, 0, 0, 0] = np.inf
    losses: list[float] = []
    with pytest.raises(FloatingPointError, match=r"^step 7: the loss is nan; the parameters are"):
        losses.extend(one.train(broken, check_every=3))
    assert losses == first
    assert same(snapshot(one), snapshot(want))
    assert list(one.train(given[6:])) == list(want.train(given[6:]))  # it goes on


def test_a_parameter_that_is_not_finite_is_named() -> None:
    one = trainer("cuda")
    name = next(iter(one.graph.updates.values()))  # training does not read it
    hidden = one.params[name].numpy()
    hidden[1] = np.nan
    one.params[name] = tvm.runtime.tensor(hidden)
    with pytest.raises(FloatingPointError, match=f"1 of 16 values of the parameter {name!r}"):
        list(one.train(batches(40)))


def test_without_a_library_kernels_are_generated() -> None:
    given = batches(4)
    one = trainer("cuda", on_gpu=Options(backends=()))
    assert {c.source for c in one.compiled.convolutions}.isdisjoint({"cudnn", ""})
    np.testing.assert_allclose(list(one.train(given)), list(trainer("cpu").train(given)), rtol=2e-4)


def test_who_stops_asking_leaves_a_whole_state() -> None:
    given = batches(30)
    one = trainer("cuda")
    for index, _ in enumerate(one.train(iter(given), check_every=2)):
        if index == 3:
            break
    count = one.steps
    assert 4 <= count <= 8
    other = trainer("cuda")
    list(other.train(given[:count]))
    assert same(snapshot(one), snapshot(other))


def test_profile_and_plans() -> None:
    one = trainer("cuda")
    seconds = one.profile(batches(1)[0])
    assert sum(seconds.values()) > 0
    assert one.compiled.plans()
    assert one.compiled.planned_bytes > 0
