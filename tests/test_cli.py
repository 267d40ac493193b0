"""The command line as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from relay_wgrad.frontend import BUNDLED
from tests.training_models import residual_net

ROOT = Path(__file__).parent.parent


def run(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "relay_wgrad", *args],
        capture_output=True, text=True, check=False, cwd=cwd, env=env,
    )  # fmt: skip


def test_help_and_version() -> None:
    assert "train" in run("--help").stdout
    train = run("train", "--help")
    assert train.returncode == 0
    for option in ("--batch", "--image-size", "--steps", "--lr", "--optimizer", "--layout",
                   "--dtype", "--loss-scale", "--bn", "--checkpoint", "--dropout",
                   "--json", *BUNDLED):  # fmt: skip
        assert option in train.stdout
    assert "default: None" not in train.stdout
    assert re.fullmatch(r"relay-wgrad \d+\.\d+\.\d+\n", run("--version").stdout)


def test_env() -> None:
    done = run("env")
    assert done.returncode == 0, done.stderr
    assert "apache-tvm" in done.stdout
    assert "all found" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "required: COMMAND"),
        (("trian",), 2, "invalid choice"),
        (("train", "--batch", "0"), 2, "must be an integer of at least 1, got '0'"),
        (("train", "--steps", "x"), 2, "must be an integer of at least 1, got 'x'"),
        (("train", "--lr", "-1"), 2, "must be a positive number, got '-1'"),
        (("train", "--dtype", "int8"), 2, "must be one of f32, f16, bf16, f64, got 'int8'"),
        (("train", "--loss-scale", "big"), 2, "must be a positive number, got 'big'"),
        (("train", "--layout", "HWNC"), 2, "invalid choice: 'HWNC'"),
        (
            ("train", "squeezenet", "--checkpoint", "nowhere"),
            1,
            "checkpoint: squeezenet has no computed tensor 'nowhere'",
        ),
        (("train", "squeezenet", "--json", "no/such/folder/x.json"), 1, "no/such/folder/x.json"),
        (("train", "resnet51"), 1, "resnet50"),
        (("train", "no/such/file.onnx"), 1, "no/such/file.onnx"),
        (
            ("train", "vgg19", "--image-size", "100"),
            1,
            "it fixes the image size at 224x224 (for the fully connected Gemm node 'n38')",
        ),
        (("train", "squeezenet", "--batch", "1" + "0" * 20), 1, "the largest batch is 14266"),
        (("train", "--seed", "-1"), 2, "must be an integer of at least 0, got '-1'"),
    ],
)
def test_errors(args: tuple[str, ...], code: int, message: str) -> None:
    done = run(*args)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_users_own_model(tmp_path: Path) -> None:
    """A file of the user's: mixed precision, NHWC, checkpoints, masks; then one that is refused."""
    path = tmp_path / "mine.onnx"
    model = residual_net(blocks=1, dropout=0.25)
    onnx.save(model, path)
    figures = tmp_path / "figures.json"
    done = run("train", str(path), "--batch", "2", "--steps", "8", "--dtype", "bf16",
               "--layout", "NHWC", "--checkpoint", "pool", "--dropout", "mask", "--no-check",
               "--optimizer", "adam", "--lr", "0.003",
               "--json", str(figures))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""  # no progress where nobody watches
    assert "layout changes in the step" in done.stdout
    data = json.loads(figures.read_text())
    assert data["losses"][-1] < data["losses"][0]
    assert data["planned_bytes"] > 0
    assert all("layout=NHWC" in c["problem"] for c in data["convolutions"])
    assert all("bf16" in c["problem"] for c in data["convolutions"])

    model.graph.node[2].op_type = "Einsum"
    model.graph.node[2].name = "odd one"
    onnx.save(model, path)
    done = run("train", str(path), "--quiet")
    assert done.returncode == 1
    assert "ONNX op Einsum (Einsum node 'odd one') is not supported" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_train(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = run("train", "squeezenet", "--batch", "2", "--image-size", "48", "--steps", "2",
               "--bn", "eval", "--lr", "0.001", "--json", str(figures))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout  # no colours when piped
    assert "largest relative error" in done.stdout
    data = json.loads(figures.read_text())
    assert data["losses"][-1] < data["losses"][0]
    convolutions = data["convolutions"]
    assert len(convolutions) == 26 + 26 + 25
    assert {c["op"] for c in convolutions} == {
        "conv2d", "conv2d_backward_data", "conv2d_backward_weight",
    }  # fmt: skip
    assert all(c["error"] < 1e-4 and c["seconds"] > 0 for c in convolutions)
    assert data["peak_bytes"] > 2**20
