"""Networks through `torch.compile` beside other ways: by a small one on the CPU."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import torch_compile, torch_sides
from benchmarks.cpu_timing import cpu_model
from benchmarks.network_zoo import Loss
from benchmarks.torch_sides import Case

CASE = Case("small", ("exact", "eager"), 3, "cpu", "f32", 4, None)


def _small(case: Case) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3))
    network = nn.Sequential(*layers, nn.Linear(4, 10))
    return Loss(network), torch.randn(case.batch, 3, 8, 8), torch.arange(case.batch)


@pytest.mark.usefixtures("registered")
def test_losses_are_eagers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout's numbers too; both of the convolution's parts are this package's."""
    torch._dynamo.reset()
    torch_sides.facts_of_ours("ours")  # those of other tests in this process
    monkeypatch.setattr(torch_sides, "problem", _small)
    first, row = torch_sides.measured(CASE)
    assert first is None
    assert row is not None
    assert list(row["sides"]) == ["eager", "exact", "ours"]
    assert row["relative"] < 1e-5
    assert max(row["furthest"], row["state"], row["eagers"], row["ours_exact"]) < 1e-5
    ours = row["sides"]["ours"]
    assert (row["asked"], ours["taken"], row["breaks_added"]) == (2, 2, 0)
    assert len(set(ours["losses"])) == 3
    assert "reason" not in row


def test_reasons() -> None:
    """What a row is not as it should be for."""
    row: dict[str, Any] = {
        "sides": {"ours": {"reasons": ["no such op"]}}, "breaks_added": 2, "furthest": 0.1,
        "eagers": 0.02,
    }  # fmt: skip
    said = torch_sides.reason(row)["reason"]
    assert said == "no such op; 2 graph breaks are added; losses part by 10.0% of the first"
    row["breaks_added"] = 0
    row["sides"]["ours"]["reasons"] = []
    for known in ({"eagers": 0.03}, {"rounding": 0.03}):
        assert torch_sides.reason(row)
        assert torch_sides.reason({**row, **known}) == {}


@pytest.mark.parametrize(("step", "furthest"), [(0.0, 0.0), (1e6, 1e-3)])
def test_what_a_rounding_does(step: float, furthest: float) -> None:
    """Nothing to a loss that is smooth there; much to one that has a step at zero."""
    images = torch.ones(2, 3, 4, 4)

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Any, labels: Any) -> Any:
            return self.weight.square() * 0.1 + step * torch.relu(x - images).mean()

    case = CASE._replace(steps=2)
    losses = torch_sides.Side("eager", case, Steps(), images, torch.zeros(2)).trained()["losses"]
    found = torch_sides.rounding(case, Steps(), images, torch.zeros(2), losses)
    assert furthest <= found < 1.0
    assert bool(found) == bool(step)


def test_networks_without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks' own: images and labels for each; others are refused by name."""
    monkeypatch.setattr(torch_sides.importlib.util, "find_spec", lambda name: None)
    module, images, labels = torch_sides.problem(CASE._replace(name="unet", batch=2, image=32))
    assert (images.shape, labels.shape) == ((2, 3, 32, 32), (2,))
    assert module.training
    with pytest.raises(ValueError, match="alexnet: a network of torchvision"):
        torch_sides.problem(CASE._replace(name="alexnet"))


def _row(name: str) -> dict[str, Any]:
    ms = {"ours": 2.0, "eager": 1.0, "exact": 5.0}
    sides = {side: {"losses": [1.0], "ms": took, "taken": 2} for side, took in ms.items()}
    sides["ours"] |= {"first_s": 3.0}
    return {"image": 8, "asked": 2, "breaks_added": 0, "furthest": 0.0, "sides": sides}


def test_rows_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --resume those that have all sides are not measured again."""
    path, asked = tmp_path / "rows.json", []

    def run(cases: Any, jobs: int, until: float, told: Any) -> None:
        for case in cases:
            asked.append(case.name)
            ended = case.name == "b" and asked.count("b") == 1
            told(case.name, {"error": "time is up"} if ended else _row(case.name))

    monkeypatch.setattr(torch_compile, "run", run)
    given = ["--networks", "a,b", "--json", str(path)]
    assert torch_compile.main(given) == 1
    assert torch_compile.main([*given, "--resume"]) == 0
    assert asked == ["a", "b", "b"]
    assert len(json.loads(path.read_text())["rows"]) == 2
    said = capsys.readouterr().out
    assert "ours / eager: geometric mean 2.000 of 2 networks" in said
    assert "2 of 2 networks, 2 without a failure" in said
    for wrong in (["--against", "nothing"], ["--resume"], [*given, "--resume", "--batch", "3"]):
        with pytest.raises(SystemExit):
            torch_compile.main(wrong)


def test_rows_of_another_machine_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says its device; those of a file that says it once get it."""
    path = tmp_path / "rows.json"
    monkeypatch.setattr(torch_compile, "run", lambda cases, *_: _[-1]("b", _row("b")))
    torch_compile.main(["--networks", "b", "--json", str(path)])
    found = json.loads(path.read_text())
    (row,) = found["rows"].values()
    del row["device"]
    path.write_text(json.dumps({**found, "device": "elsewhere", "rows": {"a": row}}))
    assert torch_compile.main(["--networks", "a,b", "--json", str(path), "--resume"]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert rows["a"]["device"] == "elsewhere"
    assert rows["b"]["device"] == cpu_model()


def test_a_process_that_fails_has_a_row() -> None:
    """What a child raises is its row's error."""
    found: dict[str, Any] = {}
    cases = [CASE._replace(name="onnx:nothing")]
    torch_compile.run(cases, 1, time.monotonic() + 100, found.__setitem__)
    assert "no bundled network 'nothing'" in found["onnx:nothing"]["error"]
