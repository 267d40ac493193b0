"""What `benchmarks.gpu_training --against` does that needs no GPU."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import gpu_against, gpu_models, gpu_sides
from benchmarks.gpu_against import Campaign, disagreements, ratio
from benchmarks.gpu_sides import Row
from relay_wgrad.frontend import from_onnx
from tests.support.torch.model import prepared

ROWS = [Row(model, 8, None, "f16") for model in ("a", "b", "c")]


class Fake:
    """A machine on which every side takes ten seconds."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, list[tuple[str, str]]()
        self.failing = ""

    def measure(self, side: str, row: Row, seconds: float) -> dict[str, Any]:
        self.calls.append((row.model, side))
        self.now += 10
        if row.model == self.failing:
            return {"error": "no"}
        return {"ms": 3.0 if side == "ours" else 4.0, "loss": 1.0, "norm": 2.0}


def campaign(fake: Fake, path: Path, **options: Any) -> Campaign:
    facts = {"gpu": "one", "torch": "2"}
    return Campaign(["ours", "eager"], facts, fake.measure, path=path, **options)


def test_a_row_that_time_does_not_allow_is_named(tmp_path: Path) -> None:
    fake, path = Fake(), tmp_path / "rows.json"
    rows, left = campaign(fake, path, budget=50).run(ROWS, lambda: fake.now)
    assert fake.calls == [(m, s) for m in "ab" for s in ("ours", "eager")]
    assert left == [ROWS[2]]
    assert [ratio(row) for row in rows] == [0.75, 0.75]
    stored = json.loads(path.read_text())
    assert [row["model"] for row in stored["rows"]] == ["a", "b"]
    assert stored["not_measured"] == [ROWS[2]._asdict()]


def test_resume_measures_what_is_missing(tmp_path: Path) -> None:
    fake, path = Fake(), tmp_path / "rows.json"
    fake.failing = "b"
    campaign(fake, path).run(ROWS[:2], lambda: fake.now)
    fake.calls.clear()
    fake.failing = ""
    rows, left = campaign(fake, path, resume=True).run(ROWS, lambda: fake.now)
    assert {model for model, _ in fake.calls} == {"b", "c"}
    assert not left
    assert len(rows) == 3
    stored = json.loads(path.read_text())
    assert len(stored["rows"]) == 3
    assert not stored["not_measured"]
    other = Campaign(["ours"], {"gpu": "two", "torch": "2"}, fake.measure, path=path, resume=True)
    fake.calls.clear()
    other.run(ROWS[:1], lambda: fake.now)
    assert fake.calls == [("a", "ours")]  # another device


def test_sides_that_differ_are_said() -> None:
    sides = {"ours": {"loss": 7.0, "norm": 1.0}, "eager": {"loss": 7.1, "norm": 1.2}}
    (line,) = disagreements([{"model": "a", "dtype": "f16", "sides": sides}])
    assert "norm: ours 1, eager 1.2" in line
    sides["ours"]["norm"] = math.nan
    assert len(disagreements([{"model": "a", "dtype": "f16", "sides": sides}])) == 1
    assert math.isnan(ratio({"sides": {"ours": {"ms": 1.0}, "eager": {"error": "no"}}}))


def test_sides_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, of a small network: ours, PyTorch's, and `TrainingStep`."""

    class Tiny(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(
                nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU(),
                nn.Flatten(), nn.Linear(4 * 4 * 4, 5),
            )  # fmt: skip

    monkeypatch.setattr(gpu_models, "UNet", Tiny)
    monkeypatch.setattr(gpu_models, "CLASSES", 5)
    row = Row("unet", 2, 6, "f32")
    sides = {name: gpu_sides.measure(name, row, "cpu") for name in ("ours", "eager", "step")}
    assert not disagreements([{"model": "tiny", "dtype": "f32", "sides": sides}], 1e-4)
    assert all(figures["ms"] > 0 for figures in sides.values())


def test_a_side_that_fails_is_an_error() -> None:
    found = gpu_against.side("eager", Row("onnx:none", 1, None, "f32"), math.inf, "cpu")
    assert "no bundled network 'none'" in found["error"]
    found = gpu_against.side("eager", Row("onnx:resnet50", 1, None, "f32"), 0, "cpu")
    assert found == {"error": "the time budget ended it"}


@pytest.mark.parametrize("name", ["densenet121", "shufflenet", "inception_v1"])
def test_pytorchs_side_has_every_operator(name: str) -> None:
    """By shapes alone: what compares numbers compiles whole networks."""
    graph = from_onnx(name, batch=2)
    _, logits, gradients, statistics = prepared(
        name, graph, graph.random_batch(0), "train", device="meta"
    )()
    assert logits.shape == (2, 1000)
    assert [g.shape for g in gradients] == [graph.params[n].shape for n in graph.trainable]
    assert len(statistics) == len(graph.updates)
    module = gpu_models.OnnxModule(name, graph).to("meta")
    assert module(torch.empty(graph.inputs[0].shape, device="meta")).shape == (2, 1000)


def test_the_unet() -> None:
    with torch.device("meta"):
        network = gpu_models.UNet()
        assert network(torch.empty(2, 3, 64, 64)).shape == (2, 1000)
    with pytest.raises(ValueError, match="no bundled network 'lenet'"):
        gpu_models.build("onnx:lenet", 1, None)
