"""Evaluation beside PyTorch's, and the logs of a training."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as fn

from relay_wgrad import extras
from relay_wgrad.frontend import CrossEntropy, from_torch
from relay_wgrad.training import Trainer, Update
from relay_wgrad.training.data import Data
from relay_wgrad.training.evaluation import Evaluator
from relay_wgrad.training.logs import FIELDS, Log
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")


class Net(nn.Module):
    """Logits of each pixel, or of whole images."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.drop = nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5), nn.Dropout()
        self.pooled = pooled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.norm(self.conv(x)))
        return y.mean((2, 3)) if self.pooled else y


@pytest.mark.share(2)
@pytest.mark.parametrize("pooled", [True, False])
def test_evaluation(pooled: bool) -> None:
    """Of ten samples in batches of four, with running statistics and without dropout."""
    module = Net(pooled).double()
    rng = np.random.default_rng(0)
    module.norm.running_mean += torch.tensor(rng.standard_normal(5))
    ignored = None if pooled else 4
    x = rng.standard_normal((10, 3, 3, 3))
    labels = rng.integers(0, 5, (10,) if pooled else (10, 3, 3))
    loss = CrossEntropy(ignore_index=ignored)
    graph = from_torch(module, (torch.tensor(x[:4]),), bn="eval", loss=loss)
    evaluate = Evaluator(graph, FAST)
    data = Data(graph, {"x": x, "labels": labels})
    found = evaluate(graph.params, data)
    module.eval()
    y, target = module(torch.tensor(x)), torch.tensor(labels)
    counts = target != (-1 if ignored is None else ignored)
    right = ((y.argmax(1) == target) & counts).sum() / counts.sum()
    assert found.samples == 10
    assert found.accuracy == pytest.approx(float(right))
    given = {} if ignored is None else {"ignore_index": ignored}
    losses = [float(fn.cross_entropy(y[i : i + 4], target[i : i + 4], **given).detach())
              for i in (0, 4, 8)]  # fmt: skip
    assert found.loss == pytest.approx((4 * losses[0] + 4 * losses[1] + 2 * losses[2]) / 10)
    few = evaluate(graph.params, Data(graph, {"x": x[:3], "labels": labels[:3]}, least=1))
    assert few.samples == 3
    assert few.loss == pytest.approx(fn.cross_entropy(y[:3], target[:3], **given).item())
    with pytest.raises(ValueError, match="no value for parameter 'conv_weight'"):
        evaluate({}, data)
    wrong = {**graph.params, "conv_weight": np.zeros((5, 3))}
    with pytest.raises(ValueError, match=r"'conv_weight' is \[5, 3, 1, 1\], got \[5, 3\]"):
        evaluate(wrong, data)


@pytest.mark.parametrize("loss", ["mse", "own"])
def test_a_short_last_batch(loss: str) -> None:
    """Of a target; of the model's own loss, which is of whole batches, the rest is not counted."""
    module, x = Net(True).double(), np.random.default_rng(0).standard_normal((6, 3, 3, 3))
    net = module if loss == "mse" else nn.Sequential(module, Mean())
    graph = from_torch(net, (torch.tensor(x[:4]),), bn="eval", loss=loss)
    name, module = graph.inputs[0].name, module.eval()
    y = module(torch.tensor(x)).detach()
    found = Evaluator(graph, FAST)(graph.params, Data(graph, {name: x, "target": 0 * y.numpy()}))
    counted = y if loss == "mse" else y[:4]
    assert found.samples == len(counted)
    assert found.loss == pytest.approx(counted.square().mean().item())


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


def test_a_log_goes_on(tmp_path: Path) -> None:
    """Rows after the step of a resumed state are of a training that is no more."""
    path = tmp_path / "log.csv"
    with Log(path) as log:
        for step in range(4):
            log.row(step=step, epoch=0, loss=1 / (step + 1), rate=0.1)
            if step % 2:
                log.row(step=step + 1, test_loss=0.5)
    with Log(path, steps=2) as log:
        log.row(step=2, loss=7.0)
    lines = path.read_text().splitlines()
    assert lines[0] == ",".join(FIELDS)
    assert lines[1:] == ["0,0,1.0,0.1,,,", "1,0,0.5,0.1,,,", "2,,,,,0.5,", "2,,7.0,,,,"]
    with Log(path):  # another training
        pass
    assert path.read_text().splitlines() == lines[:1]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"is no log of a training: \['a', 'b'\]"):
        Log(path, steps=1)
    with Log() as log:
        log.row(step=1, loss=1.0)


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer gets what the file gets."""
    rows: list[Any] = []

    class Writer:
        def __init__(self, folder: str, **options: Any) -> None:
            rows.append((Path(folder).name, options))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            rows.append((name, value, step))

        def close(self) -> None:
            rows.append("closed")

    class Module:
        SummaryWriter = Writer

    monkeypatch.setattr(extras, "import_module", lambda name: Module)
    with Log(events=tmp_path / "events", steps=3) as log:
        log.row(step=3, epoch=1, loss=0.5, rate=0.1, seconds=None)
    assert rows == [
        ("events", {"purge_step": 3}), ("loss", 0.5, 3), ("rate", 0.1, 3), "closed"
    ]  # fmt: skip


def test_averages_are_evaluated_and_written() -> None:
    """With running statistics, and what is not trained, as they are."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5))
    x = (torch.zeros(4, 3, 6, 6),)
    graph = from_torch(net, x, freeze="0.*")
    trainer = Trainer(graph, FAST, update=Update(ema=0.5))
    trainer.step(graph.random_batch(0))
    averages = trainer.averages
    assert [*averages] == [*trainer.params]
    for name, value in averages.items():
        if name in graph.trainable:
            want = 0.5 * (graph.params[name] + trainer.params[name].numpy())
        else:
            want = trainer.params[name].numpy()
        np.testing.assert_allclose(value.numpy(), want, rtol=1e-5, atol=1e-7)
    plain = from_torch(net, x, bn="eval")
    batch = plain.random_batch(1)
    found = Evaluator(plain, FAST)(averages, Data(plain, batch))
    twin = copy.deepcopy(net).eval()
    twin.load_state_dict(
        {graph.onnx_names[n]: torch.tensor(v.numpy()) for n, v in averages.items()}, strict=False
    )
    labels = torch.tensor(batch["labels"])
    with torch.no_grad():
        want = fn.cross_entropy(twin(torch.tensor(batch[plain.inputs[0].name])), labels)
    assert found.loss == pytest.approx(want.item(), rel=1e-5)
