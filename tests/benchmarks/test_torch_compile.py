"""Networks through `torch.compile` beside other ways: by a small one on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import runner, torch_compile, torch_sides
from benchmarks.__main__ import main
from benchmarks.network_zoo import Loss
from benchmarks.torch_sides import Problem

CASE = Problem("small", ("exact", "eager"), 3, "cpu", "f32", 4, None)


def _small(case: Problem) -> tuple[nn.Module, Any, Any]:
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


def test_a_row_has_all_sides() -> None:
    args = runner.parsed(torch_compile.BENCHMARK, ["--against", "eager"], "", "", False)
    ms = {"ours": 2.0, "eager": 1.0, "exact": 5.0}
    row = {"sides": {side: {"losses": [1.0], "ms": took} for side, took in ms.items()}}
    assert torch_compile.is_whole(row, args)
    assert not torch_compile.is_whole({"reason": "time is up"}, args)
    (line,) = torch_compile.summary([row, row])
    assert line == "ours / eager: geometric mean 2.000 of 2 networks, 2.00 to 2.00"


def test_a_process_that_fails_has_a_row(tmp_path: Path) -> None:
    """What a child raises is its row's reason."""
    path = tmp_path / "rows.json"
    given = ["--networks", "onnx:nothing", "--against", "eager", "--json", str(path)]
    assert main(["cpu", "compile", *given]) == 1
    (row,) = json.loads(path.read_text())["rows"]
    assert "no bundled network 'nothing'" in row["reason"]
