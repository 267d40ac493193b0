"""`train --device cuda`, with a stand-in for CUDA's runtime, and a state that goes to the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from relay_wgrad.cli import train as command
from relay_wgrad.training import devices
from relay_wgrad.training import trainer as training
from tests.support.cuda_stand_in import runtime, stand_in
from tests.support.training_models import residual_net


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
    assert "images/s" in text
    found = json.loads(figures.read_text())
    assert found["device"] == "cuda:0"
    assert found["loss_error"] == found["gradient_error"] == 0  # it is this CPU
    assert len(found["losses"]) == 13
    assert found["images_per_second"] > 0
    assert found["peak_bytes"] == 1 << 30
    assert call(*args, "--steps", "2", "--no-check", "--resume", str(state))[0] == 0
    found, on_gpu = json.loads(figures.read_text()), found
    assert found["device"] == "cpu"
    assert found["losses"][0] == on_gpu["losses"][-1]
