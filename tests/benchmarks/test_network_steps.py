"""Networks trained beside PyTorch's losses, by a small one on the CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import network_steps, network_zoo


def _small(name: str) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3))
    return nn.Sequential(*layers, nn.Linear(4, 10)), 8


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_zoo, "build", _small)
    monkeypatch.setattr(network_zoo, "torchvision_models", lambda: None)


@pytest.mark.usefixtures("registered", "small")
def test_losses_are_pytorchs(capsys: pytest.CaptureFixture[str]) -> None:
    network_steps.trained("ours/small", ["f32"], "cpu", 3)
    row = json.loads(capsys.readouterr().out)
    assert "reason" not in row
    assert row["furthest"] < 1e-6
    assert row["pytorchs"] == 0
    assert len(row["losses"]) == len(row["pytorch"]) == 3
    assert len(set(row["pytorch"])) == 3


@pytest.mark.usefixtures("registered", "small")
def test_what_parts_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*args: Any, **options: Any) -> Any:
        raise ValueError("no GPU\nmore")

    monkeypatch.setattr("relay_wgrad.training.trainer.Trainer", ended)
    network_steps.trained("ours/small", ["f32", "f16"], "cpu", 1)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["reason"] for row in rows] == ["ValueError: no GPU"] * 2
    assert network_steps.apart([1.0, float("nan")], [1.0, 1.0]) == float("inf")
    assert network_steps.apart([2.0, 1.0], [2.0, 2.0]) == 0.5


def test_rows_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, asked = tmp_path / "rows.json", []
    ended = {"b"}

    def rows(name: str, dtypes: Sequence[str], *rest: Any) -> list[dict[str, Any]]:
        asked.append((name, *dtypes))
        return [] if name in ended else [{"name": name, "dtype": dtype} for dtype in dtypes]

    monkeypatch.setattr(network_steps, "rows_of", rows)
    given = ["--models", "a,b", "--json", str(path), "--jobs", "1"]
    assert network_steps.main(given) == 0
    assert "2 of 4 rows, 2 without a failure, of 1 networks" in capsys.readouterr().out
    ended.clear()
    assert network_steps.main([*given, "--resume"]) == 0
    assert asked == [("a", "f16", "bf16"), ("b", "f16", "bf16"), ("b", "f16", "bf16")]
    assert len(json.loads(path.read_text())["rows"]) == 4
    for wrong in (["--dtypes", "f8"], ["--resume"]):
        with pytest.raises(SystemExit):
            network_steps.main(wrong)


def test_a_process_that_dies_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_steps.sys, "executable", "false")
    (row,) = network_steps.rows_of("a", ["f16", "bf16"], "cpu", 1, 10)
    assert row["dtype"] == "f16"
    assert row["reason"].startswith("the process died (exit status 1)")
