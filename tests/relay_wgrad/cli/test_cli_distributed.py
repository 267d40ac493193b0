"""`train` under `torchrun`, as several processes of one machine and as several machines."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.children import ROOT, finding, run_module
from tests.support.processes import ENVIRONMENT
from tests.support.training_models import residual_net

Image = pytest.importorskip("PIL.Image")
ARRAYS, IMAGES = "samples.npz", "images"
pytestmark = pytest.mark.longer("starts processes of its own, under torchrun")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a network and samples for it, arrays and images."""
    onnx.save(residual_net(blocks=0, size=6), tmp_path / "net.onnx")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 3, 6, 6), dtype=np.float32)
    np.savez(tmp_path / ARRAYS, x=x, labels=rng.integers(0, 5, 40))
    for number in range(40):
        place = tmp_path / IMAGES / str(number % 5)
        place.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(rng.integers(0, 256, (9 + number % 4, 12, 3), "uint8"))
        picture.save(place / f"{number}.{'png' if number % 7 == 0 else 'jpg'}")
    return tmp_path


def command(folder: Path, batch: int, *more: str, samples: str = ARRAYS) -> list[str]:
    return [
        "train", str(folder / "net.onnx"), "--bn", "eval", "--batch", str(batch), "--data",
        str(folder / samples), "--no-check", "--optimizer", "momentum", *more,
    ]  # fmt: skip


def torchrun(how: Sequence[str], args: Sequence[str]) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", *how, "-m"]
    return subprocess.Popen(
        # Without "--" the launcher takes `--log` for the beginning of two options of its own.
        [*launcher, "--", "relay_wgrad", *args],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **ENVIRONMENT, **finding(ROOT)}, start_new_session=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def losses(path: Path) -> list[float]:
    with path.open(encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]


@pytest.mark.parametrize("samples", [ARRAYS, IMAGES])
def test_two_processes_then_one_then_two_machines(files: Path, samples: str) -> None:
    """Ten steps of one process are as well two processes' four, then one's three, and then two
    machines' three."""
    alone, log, state = files / "alone.csv", files / "log.csv", files / "state.safetensors"
    ten = command(files, 8, "--steps", "10", "--log", str(alone), samples=samples)
    done = run_module("relay_wgrad", *ten)
    assert done.returncode == 0, done.stderr
    saves = ("--log", str(log), "--save", str(state))
    figures_of = ("--json", str(files / "figures.json"))
    out = ended(torchrun(
        ["--standalone", "--nproc-per-node", "2"],
        command(files, 4, "--steps", "4", *saves, *figures_of, samples=samples),
    ))  # fmt: skip
    assert "5 batches of 2 x 4 an epoch" in out
    assert out.count("loss:") == 1  # the first process prints
    figures: dict[str, Any] = json.loads((files / "figures.json").read_text())
    assert figures["processes"] == 2
    more = ("--steps", "3", "--resume", str(state), *saves)
    done = run_module("relay_wgrad", *command(files, 8, *more, samples=samples))
    assert done.returncode == 0, done.stderr
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port = found.getsockname()[1]
    more = (*more, "--test", str(files / samples))
    machines = [
        torchrun(
            ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1", "--master-addr",
             "127.0.0.1", "--master-port", str(port)],
            command(files, 4, *more, samples=samples),
        )
        for node in range(2)
    ]  # fmt: skip
    assert "test loss" in ended(machines[0])
    assert "test loss" not in ended(machines[1])
    assert len(losses(alone)) == 10
    np.testing.assert_allclose(losses(log), losses(alone), rtol=1e-5)


def test_a_process_that_is_killed_ends_the_others(files: Path) -> None:
    """While images are read."""
    args = command(
        files, 4, "--steps", "1000000", "--log", str(files / "log.csv"), samples=IMAGES
    )  # fmt: skip
    whole = torchrun(["--standalone", "--nproc-per-node", "2"], args)
    try:
        until = time.monotonic() + 120
        while not (files / "log.csv").exists() or not losses(files / "log.csv"):
            assert time.monotonic() < until
            time.sleep(0.5)
        children = Path(f"/proc/{whole.pid}/task/{whole.pid}/children").read_text().split()
        ranks = [
            pid for pid in children if b"RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
        ]
        os.kill(int(ranks[0]), signal.SIGKILL)
        killed = time.monotonic()
        _, err = whole.communicate(timeout=60)
        assert time.monotonic() - killed < 30
    finally:
        if whole.poll() is None:
            os.killpg(whole.pid, signal.SIGKILL)
    assert whole.returncode == 1
    assert "process 0: ConnectionError: another process has ended" in err or "SIGTERM" in err
    assert "exitcode  : -9" in err


def test_errors_name_their_process(files: Path) -> None:
    """The first process's file cannot be written: each says so for itself."""
    args = command(files, 4, "--save", str(files / "missing" / "state.safetensors"))
    process = torchrun(["--standalone", "--nproc-per-node", "2"], args)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "process 0: FileNotFoundError" in err
