"""A process that trains on the GPU ends as others do: `tests.support.exits`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from relay_wgrad.training import state
from tests.support.children import finding
from tests.support.exits import CODES
from tests.support.training_models import residual_net

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("how", CODES)
def test_a_process_ends(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.exits", how],
        env={**os.environ, **finding(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == CODES[how], done.stderr
    assert "terminate called" not in done.stderr


def test_an_interrupted_command_saves(tmp_path: Path) -> None:
    onnx.save(residual_net(blocks=1), tmp_path / "net.onnx")
    log, saved = tmp_path / "log.csv", tmp_path / "state.safetensors"
    process = subprocess.Popen(
        [sys.executable, "-m", "relay_wgrad", "train", "net.onnx", "--device", "cuda",
         "--steps", "100000000", "--no-check", "--log", str(log), "--save", str(saved)],
        env={**os.environ, **finding(ROOT)}, stderr=subprocess.PIPE, cwd=tmp_path,
        stdout=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        for _ in range(2000):
            if process.poll() is not None or (log.exists() and log.read_text().count("\n") > 40):
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert error.splitlines()[-2:] == [f"saved to {saved}", "interrupted"]
    assert int(state.header(saved)["steps"]) >= 40
