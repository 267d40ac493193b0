"""`train --device cuda`, with a stand-in for CUDA's runtime, and a state that goes to the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from relay_wgrad.cli import inspect as inspection
from relay_wgrad.cli import train as command
from relay_wgrad.inspection import Inspection
from relay_wgrad.training import devices
from relay_wgrad.training import trainer as training
from tests.support.cuda_stand_in import runtime, stand_in
from tests.support.training_models import residual_net


@pytest.mark.longer
def test_train(tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    made = runtime(tmp_path)

    def place(device: Any, options: Any = None) -> Any:
        if device != "cuda":
            return devices.place(device, options)
        assert (options is None) or (options.tf32, options.benchmark) == (False, True)
        return stand_in(made)

    monkeypatch.setattr(training, "place", place)
    monkeypatch.setattr(command, "place", place)
    path, state, figures = (tmp_path / name for name in ("n.onnx", "s.safetensors", "f.json"))
    onnx.save(residual_net(blocks=0, size=6), path)
    args = ["train", str(path), "--batch", "2", "--lr", "0.01", "--json", str(figures), "--quiet"]
    code, text, error = call(
        *args, "--steps", "12", "--device", "cuda", "--no-tf32", "--benchmark", "--save", str(state)
    )
    assert code == 0, error
    assert "second opinion (the same step on this CPU): relative error of the loss" in text
    assert "moved by a rounding of float32)" in text
    assert "images/s" in text
    found = json.loads(figures.read_text())
    assert found["device"] == "cuda:0"
    assert found["loss_error"] == found["gradient_error"] == 0  # it is this CPU
    assert 1e-9 < found["gradient_rounding"] < 1e-4
    assert len(found["losses"]) == 13
    assert found["images_per_second"] > 0
    assert found["peak_bytes"] == 1 << 30
    assert call(*args, "--steps", "2", "--no-check", "--resume", str(state))[0] == 0
    found, on_gpu = json.loads(figures.read_text()), found
    assert found["device"] == "cpu"
    assert found["losses"][0] == on_gpu["losses"][-1]


@pytest.mark.longer
def test_inspect(tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = runtime(tmp_path)

    def place(device: Any, options: Any = None) -> Any:
        return stand_in(made) if device == "cuda" else devices.place(device, options)

    for module in (training, inspection):
        monkeypatch.setattr(module, "place", place)
    monkeypatch.setattr(inspection, "cuda_runtime", lambda: made)
    path, report = tmp_path / "n.onnx", tmp_path / "r.json"
    onnx.save(residual_net(blocks=0, size=6), path)
    assert call("inspect", str(path), "--device", "cuda") == (
        2, "", "inspect: --device is for --measure\n"
    )  # fmt: skip
    args = ["inspect", str(path), "--measure", "--device", "cuda", "--quiet"]
    code, _, error = call(*args, "--report", str(report))
    assert code == 0, error
    found = json.loads(report.read_text())
    kernels = found["kernels"]
    assert len(kernels) > 10
    # A millisecond between the stand-in's moments: one for each call.
    assert all(round(k["seconds"] * 1e3) == k["calls"] > 0 for k in kernels)
    assert all(c["seconds"] > 0 and "floor_seconds" not in c for c in found["convolutions"])
    conv = found["convolutions"][0]
    assert conv["bytes"] in [k["bytes"] // k["calls"] for k in kernels]
    inspected = Inspection(found)
    assert "| kernel | calls | ms | MB | TB/s |" in inspected.to_markdown()
    assert 'id="kernels-part"' in inspected.to_html()
