"""Decay, clipping, schedules and averages beside PyTorch's, resumed, and on a GPU's way."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as fn
from torch.optim import lr_scheduler as rates

from relay_wgrad.frontend import from_torch
from relay_wgrad.training import Trainer, Update, state
from relay_wgrad.training.schedules import SCHEDULES, Cosine, Step, schedule_of
from relay_wgrad.training.update import update_of
from tests.support.fast import FAST
from tests.support.onnx.models import relative

pytestmark = pytest.mark.usefixtures("registered")

X = torch.zeros(4, 3, 5, 5, dtype=torch.float64)
LR = 0.05


class Net(nn.Module):
    """A convolution, a norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def made(optimizer: str, update: Update, **options: Any) -> Trainer:
    graph = from_torch(Net().double(), (X,))
    return Trainer(graph, FAST, optimizer=optimizer, lr=LR, update=update, **options)


def groups(net: nn.Module, decay: float, everything: bool) -> list[dict[str, Any]]:
    weights = [p for p in net.parameters() if p.ndim > 1 or everything]
    rest = [p for p in net.parameters() if p.ndim <= 1 and not everything]
    return [{"params": weights, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def adamw(net: nn.Module) -> tuple[Any, Any]:
    rule = torch.optim.AdamW(groups(net, 0.3, False), LR, eps=1e-8)
    first = rates.LinearLR(rule, start_factor=1 / 3, total_iters=2)
    second = rates.CosineAnnealingLR(rule, T_max=5, eta_min=0.1 * LR)
    return rule, rates.SequentialLR(rule, [first, second], milestones=[3])


def momentum(net: nn.Module) -> tuple[Any, Any]:
    rule = torch.optim.SGD(groups(net, 0.2, True), LR, momentum=0.9)
    return rule, rates.StepLR(rule, 2, 0.5)


CASES = {
    "adamw": (
        Update(
            weight_decay=0.3, clip_norm=0.4, ema=0.8,
            schedule="cosine(steps=8, warmup=3, last=0.1)",
        ),
        adamw,
    ),
    "momentum": (
        Update(weight_decay=0.2, decay="all", clip_value=0.05, schedule=Step(every=2, by=0.5)),
        momentum,
    ),
}  # fmt: skip


@pytest.mark.longer
@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("optimizer", CASES)
def test_steps_are_pytorchs(optimizer: str, tmp_path: Path) -> None:
    """Six, of which the last four are a resumed training's too, bit for bit."""
    update, theirs = CASES[optimizer]
    ours, net = made(optimizer, update), Net().double()
    rule, schedule = theirs(net)
    mean = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )
    mean.n_averaged += 1  # it starts with the first parameters
    batches = [ours.graph.random_batch(seed) for seed in range(6)]
    losses = []
    for step, batch in enumerate(batches):
        losses.append(ours.step(batch))
        if step == 1:
            state.save(ours, tmp_path / "s.safetensors")
        rule.zero_grad()
        fn.cross_entropy(net(torch.tensor(batch["x"])), torch.tensor(batch["labels"])).backward()
        if update.clip_norm:
            norm = nn.utils.clip_grad_norm_(net.parameters(), update.clip_norm)
            assert norm > update.clip_norm  # it is clipped
        if update.clip_value:
            nn.utils.clip_grad_value_(net.parameters(), update.clip_value)
        rule.step()
        schedule.step()
        mean.update_parameters(net)
    named, averaged = dict(net.named_parameters()), dict(mean.module.named_parameters())
    names = ours.graph.onnx_names
    for name in ours.graph.trainable:
        # Before a norm a bias's gradient is rounding, which Adam divides by itself.
        most = 1e-7 if name == "conv_bias" else 1e-9
        assert relative(ours.params[name], named[names[name]].detach().numpy()) < most, name
        if update.ema:
            want = averaged[names[name]].detach().numpy()
            assert relative(ours.averages[name], want) < most, name
            with pytest.raises(TypeError):  # else it would be lost without a word
                ours.averages[name] = want  # type: ignore[index]
    other = ours
    after = [value.numpy().copy() for value in (*ours.params.values(), *ours.state)]
    state.restore(other, tmp_path / "s.safetensors")
    assert [other.step(batch) for batch in batches[2:]] == losses[2:]
    for value, want in zip((*other.params.values(), *other.state), after, strict=True):
        np.testing.assert_array_equal(value.numpy(), want)


def test_accumulated_gradients(tmp_path: Path) -> None:
    """Of three batches each, resumed within such; running statistics move in each."""
    update = Update(accumulate=3, clip_norm=0.3, ema=0.8, schedule="step(every=1, by=0.5)")
    ours, net = made("momentum", update), Net().double()
    rule = torch.optim.SGD(net.parameters(), LR, momentum=0.9)
    schedule = rates.StepLR(rule, 1, 0.5)
    batches = [ours.graph.random_batch(seed) for seed in range(7)]
    losses, mean = [], [p.detach().clone() for p in net.parameters()]
    for step, batch in enumerate(batches):
        losses.append(ours.step(batch))
        if step == 3:
            state.save(ours, tmp_path / "s.safetensors")
        loss = fn.cross_entropy(net(torch.tensor(batch["x"])), torch.tensor(batch["labels"]))
        assert losses[-1] == pytest.approx(float(loss.detach()), rel=1e-10)
        (loss / 3).backward()
        if step % 3 == 2:
            assert nn.utils.clip_grad_norm_(net.parameters(), 0.3) > 0.3
            rule.step()
            schedule.step()
            rule.zero_grad()
            mean = [0.8 * m + 0.2 * p.detach() for m, p in zip(mean, net.parameters(), strict=True)]
    theirs = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    names = ours.graph.onnx_names
    for name, value in ours.params.items():
        assert relative(value, theirs[names[name]].detach().numpy()) < 1e-9, name
    for (name, _), want in zip(net.named_parameters(), mean, strict=True):
        own = next(key for key, known in names.items() if known == name)
        assert relative(ours.averages[own], want.numpy()) < 1e-9, name
    after = [value.numpy().copy() for value in (*ours.params.values(), *ours.state)]
    state.restore(ours, tmp_path / "s.safetensors")
    assert [ours.step(batch) for batch in batches[4:]] == losses[4:]
    for value, want in zip((*ours.params.values(), *ours.state), after, strict=True):
        np.testing.assert_array_equal(value.numpy(), want)
    with pytest.raises(ValueError, match="was saved with accumulate=3, not 1"):
        state.check(tmp_path / "s.safetensors", ours.graph, "momentum", Update(ema=0.8))


@pytest.mark.longer("of single steps stays")
def test_an_overflow_leaves_out_all_that_is_accumulated(tmp_path: Path) -> None:
    """Once, at the last of them, and the scale is halved once."""
    graph = from_torch(Net(), (X.float(),))
    ours = Trainer(
        graph, FAST, optimizer="sgd", dtype="float16", loss_scale="dynamic",
        update=Update(accumulate=2), lr=LR,
    )  # fmt: skip
    ours.loss_scale = 2.0**40
    before = {name: ours.params[name].numpy().copy() for name in graph.trainable}
    seen = []
    for step in range(2):
        ours.step(graph.random_batch(step))
        seen.append((ours.loss_scale, ours.skipped))
    assert seen == [(2.0**40, 0), (2.0**39, 1)]
    state.save(ours, tmp_path / "s.safetensors")
    state.check(tmp_path / "s.safetensors", graph, "sgd", Update(accumulate=2))
    ours.loss_scale = 64.0
    for name in graph.trainable:
        np.testing.assert_array_equal(ours.params[name].numpy(), before[name])
    for step in range(2):
        ours.step(graph.random_batch(step))
        assert (ours.params["fc_bias"].numpy() != before["fc_bias"]).any() == (step == 1)
    assert (ours.loss_scale, ours.skipped, ours.good_steps) == (64.0, 1, 1)


@pytest.mark.longer
def test_a_state_has_its_update(tmp_path: Path) -> None:
    update = Update(ema=0.9, schedule="linear(steps=10, last=0.5)", weight_decay=0.1)
    ours, path = made("sgd", update), tmp_path / "s.safetensors"
    ours.step(ours.graph.random_batch(0))
    state.save(ours, path)
    assert state.update_in(path, state.header(path)) == update == update_of(update.text())
    with pytest.raises(ValueError, match=r"was saved with ema=0.9, not ema=None"):
        state.check(path, ours.graph, "sgd")
    state.check(path, ours.graph, "sgd", update)
    ours.lr = 0.5  # between steps
    before = ours.params["fc_bias"].numpy().copy()
    gradient = dict(zip(ours.graph.trainable, ours.gradients(ours.graph.random_batch(1))[1],
                        strict=True))["fc_bias"].numpy()  # fmt: skip
    ours.step(ours.graph.random_batch(1))
    want = before - 0.5 * update.rate(1.0, 1) * gradient
    np.testing.assert_allclose(ours.params["fc_bias"].numpy(), want, rtol=1e-10)
    with pytest.raises(ValueError, match="the trainer's update has no ema"):
        _ = made("sgd", Update()).averages


@pytest.mark.parametrize("schedule", ["cosine(steps=2)", "linear(steps=2)", "step(at=[2], by=0)"])
def test_a_schedule_that_is_over_says_so_once(schedule: str) -> None:
    """As where a finished training is resumed."""
    trainer = made("sgd", Update(schedule=schedule))
    batch = trainer.graph.random_batch(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(batch)
        trainer.step(batch)
    before = {name: trainer.params[name].numpy().copy() for name in trainer.graph.trainable}
    with pytest.warns(UserWarning, match=r"schedule=.* is over: from step 2 on") as found:
        list(trainer.train([batch] * 3))
    assert len(found) == 1
    assert all(np.array_equal(x, trainer.params[name].numpy()) for name, x in before.items())


def test_schedules() -> None:
    assert [schedule_of("constant(warmup=4)").factor(i) for i in range(6)] == [
        0.25, 0.5, 0.75, 1, 1, 1
    ]  # fmt: skip
    at = schedule_of("step(at=[2, 5], by=0.1)")
    assert [round(at.factor(i), 12) for i in range(7)] == [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]
    linear = schedule_of("linear(steps=4)")
    assert [linear.factor(i) for i in range(6)] == [1, 0.75, 0.5, 0.25, 0, 0]
    cosine = Cosine(steps=100, warmup=10, last=0.2)
    assert cosine.factor(10) == 1
    assert cosine.factor(55) == pytest.approx(0.6)
    assert cosine.factor(1000) == pytest.approx(0.2)
    assert schedule_of(str(cosine)) == cosine
    assert {*SCHEDULES} == {"constant", "step", "cosine", "linear"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_decay": -1}, "update: weight_decay must be a number from 0 on, got -1"),
        ({"decay": "biases"}, "update: decay must be weights or all, got 'biases'"),
        ({"clip_norm": 0}, "update: clip_norm must be a positive number, got 0"),
        ({"clip_value": float("inf")}, "clip_value must be a positive number, got inf"),
        ({"accumulate": 0}, "update: accumulate must be an integer from 1 to 1048576, got 0"),
        ({"accumulate": 10**400}, "accumulate must be an integer from 1 to 1048576, got 1000"),
        ({"ema": 1.0}, "update: ema must be from 0 to below 1, got 1.0"),
        ({"schedule": "exponential"}, "expected constant, step, cosine, linear"),
        ({"schedule": "cosine"}, "cosine: steps must be an integer of at least 1, got 0"),
        ({"schedule": "cosine(steps=5, warmup=5)"}, "cosine: warmup must be less than steps, 5"),
        ({"schedule": "step(every=2, at=[3])"}, "step: every or at must be given, one of them"),
        ({"schedule": "step(at=[3, 2])"}, "step: at must be growing steps of at least 1"),
        ({"schedule": "step(every=2, by=2)"}, "step: by must be from 0 to 1, got 2"),
        ({"schedule": "linear(steps=5, end=1)"}, "linear: 'end' is none of its options, warmup"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Update(**options)


def test_a_damaged_update_is_refused() -> None:
    for text in ("[]", "{", json.dumps({"lion": 1}), '{"ema": "x"}', '{"schedule": "x"}'):
        with pytest.raises(ValueError, match=r"options|must be|expected"):
            update_of(text)
