"""The table of networks: its rows, its modes, by a small network of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import network_zoo, networks
from benchmarks.__main__ import main

NAMES = ["torchvision/one", "timm/two", "timm/three"]


class Small(nn.Module):
    """A convolution, a gate, dropout, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(8, 10)
        )

    def forward(self, x: torch.Tensor) -> Any:
        y = nn.functional.hardsigmoid(self.norm(self.conv(x))) * self.scale
        return {"out": self.head(y), "aux": nn.functional.interpolate(y, size=(5, 7))}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded(name: str) -> tuple[nn.Module, int]:
        torch.manual_seed(0)  # the bias before a norm has no gradient but rounding
        return Small(), 8

    monkeypatch.setattr(networks, "build", seeded)


@pytest.mark.usefixtures("registered", "small")
def test_stages() -> None:
    row: dict[str, Any] = {}
    networks.table("ours/small", row.update)
    assert (row["layers"], row["convolutions"], row["offloaded"]) == (1, 2, 2)
    assert (row["between"], row["fixed"], row["left"]) == (0, 0, [])
    assert row["import_s"] > 0


@pytest.mark.usefixtures("registered", "small")
def test_stages_of_onnx() -> None:
    """By the older exporter where onnxscript is not installed."""
    row: dict[str, Any] = {}
    networks.table_of_onnx("ours/small", row.update)
    assert (row["layers"], row["convolutions"], row["offloaded"]) == (1, 2, 2)
    assert (row["between"], row["left"], row["constant"]) == (0, [], [])
    assert row["trained"] == 7
    assert row["exporter"] == "dynamo" or "onnxscript" in row["why"]


@pytest.mark.usefixtures("registered", "small")
def test_stages_of_aot() -> None:
    """The weight's gradient, as the joint graph asks for it, and the forward pass."""
    row: dict[str, Any] = {}
    networks.table_of_aot("ours/small", row.update)
    assert row["asked"] == row["recognised"] > 0
    assert row["offloaded"] == row["convolutions"] > row["asked"]


@pytest.mark.longer("compiles a network three times")
@pytest.mark.usefixtures("registered", "small")
def test_check(monkeypatch: pytest.MonkeyPatch) -> None:
    row: dict[str, Any] = {}
    networks.check("ours/small", row.update)
    assert row["random"] == 1
    assert 0 < row["worst"] < 1e-9
    monkeypatch.setattr(networks, "BOUND", 1e-20)
    with pytest.raises(ValueError, match=r"of network_\w+ .* away; PyTorch's own goes"):
        networks.check("ours/small", row.update)
    assert 0 < row["rounding"] < 1e-9


@pytest.mark.longer("compiles both passes of a network")
@pytest.mark.usefixtures("registered", "small")
def test_check_of_what_torch_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    row: dict[str, Any] = {}
    networks.check_compiled("ours/small", row.update)
    assert (row["breaks"], row["left"], row["graphs"]) == ({}, [], 2)
    assert row["offloaded"] == row["convolutions"] == 2
    assert 0 < row["worst"] < 1e-9
    monkeypatch.setattr(networks, "BOUND", 1e-20)
    with pytest.raises(ValueError, match=r"of network\.\w+.* away; PyTorch's own goes"):
        networks.check_compiled("ours/small", row.update)


def test_names() -> None:
    names = network_zoo.timm_names()
    assert len(set(names)) == len(names) >= 200


def test_no_such_network() -> None:
    with pytest.raises(ValueError, match="expected torchvision/NAME or timm/NAME"):
        network_zoo.build("resnet50")


def test_rows_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, asked = tmp_path / "rows.json", []
    broken = {"timm/two"}

    def measured(mode: str, name: str, *rest: Any) -> dict[str, Any]:
        asked.append(name)
        row = {"mode": mode, "name": name, "seconds": 1.0, "convolutions": 3, "offloaded": 3}
        return {**row, "reason": "ValueError: no"} if name in broken else {**row, "done": True}

    monkeypatch.setattr(networks, "measured", measured)
    monkeypatch.setattr(network_zoo, "networks", lambda: NAMES)
    given = ["cpu", "networks", "--json", str(path)]
    assert main([*given, "--models", "torchvision/*,timm/two"]) == 1
    assert main([*given, "--resume"]) == 1
    assert asked == NAMES
    said = capsys.readouterr().out
    assert "3 of 3 rows, 1 failed" in said
    assert "6 of 6 convolutions are taken" in said
    broken.clear()
    assert main([*given, "--resume", "--mode", "check"]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert sorted(row["mode"] for row in rows) == ["check"] * 3 + ["table"] * 3
    for wrong in (["--models", "lenet"], ["--resume"], ["--mode", "aot-train"]):
        with pytest.raises(SystemExit):
            main(["cpu", "networks", *wrong])
