"""`train` on folders of images: epochs, evaluation, logs, interrupted and gone on with."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from relay_wgrad.cli import train_loop
from relay_wgrad.training.update import Update
from tests.support.training_models import residual_net

Image = pytest.importorskip("PIL.Image")


def folders(path: Path) -> tuple[Path, Path]:
    """Images for training and for evaluation, of two classes that differ in colour."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 3)):
        for label in range(2):
            folder = path / part / f"class{label}"
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 60, (8, 8, 3)).astype("uint8")
                pixels[..., label] += 180
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return path / "train", path / "test"


@pytest.mark.longer("the command line's training, thrice")
def test_epochs(tmp_path: Path, call: Any) -> None:
    """Three, in one run or in two: the same losses, the same log, the same state."""
    pytest.importorskip("safetensors")
    train, test = folders(tmp_path)
    model = tmp_path / "mine.onnx"
    onnx.save(residual_net(blocks=0, size=6), model)

    def run(name: str, *options: str) -> tuple[str, list[dict[str, str]], dict[str, Any]]:
        code, out, error = call(
            "train", str(model), "--data", str(train), "--test", str(test), "--no-check",
            "--optimizer", "adamw", "--lr", "0.05", "--weights", "seeded",
            "--schedule", "cosine(warmup=2)", "--log", str(tmp_path / f"{name}.csv"),
            "--json", str(tmp_path / "f.json"), "--save", str(tmp_path / f"{name}.safetensors"),
            *options,
        )  # fmt: skip
        assert code == 0, error
        with (tmp_path / f"{name}.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return out, rows, json.loads((tmp_path / "f.json").read_text())

    out, whole, figures = run("whole", "--epochs", "3")
    assert "12 of " in out
    assert out.count("after epoch") == 3
    assert [e["epoch"] for e in figures["evaluations"]] == [1, 2, 3]
    assert figures["evaluations"][-1]["samples"] == 6
    assert len(figures["losses"]) == 9
    assert [r["step"] for r in whole if r["test_loss"]] == ["3", "6", "9"]
    assert float(whole[0]["rate"]) == pytest.approx(0.025)
    # As after a crash within the second epoch: its state is of the first one's end.
    run("part", "--epochs", "2", "--schedule", "cosine(warmup=2, steps=9)")
    log = tmp_path / "part.csv"  # killed before the evaluation, which is made up for
    log.write_text("".join(log.read_text().splitlines(True)[:-1]))
    run("part", "--epochs", "3", "--resume", str(tmp_path / "part.safetensors"),
        "--schedule", "cosine(warmup=2, steps=9)")  # fmt: skip
    with (tmp_path / "part.csv").open(encoding="utf-8") as file:
        parts = list(csv.DictReader(file))
    for row in (*whole, *parts):
        row["seconds"] = ""
    assert parts == whole
    code, _, error = call(
        "train", str(model), "--data", str(train), "--epochs", "2", "--resume",
        str(tmp_path / "part.safetensors"),
    )  # fmt: skip
    assert (code, "has 9 steps, which are 3 epochs of 3 batches" in error) == (2, True)


def test_refused(tmp_path: Path, call: Any) -> None:
    train, test = folders(tmp_path)
    model = tmp_path / "mine.onnx"
    onnx.save(residual_net(blocks=0, size=6), model)
    data = ("--data", str(train))
    for options, message in (
        ((*data, "--epochs", "1", "--steps", "2"), "--epochs 1 and --steps 2: give one of them"),
        (("--data", str(train / "class0")), "has folders of 0 classes"),
        (("--epochs", "2"), "--epochs 2: an epoch is of --data, which is not given"),
        (("--test", str(test)), "there is no --data to train on"),
        ((*data, "--std", "0"), "std must be positive, got (0.0,)"),
        (("--mean", "0.5"), "--mean: neither --data nor --test is a folder of images"),
        (("--augment", "crop"), "--augment: neither --data nor --test is a folder of images"),
        (("--no-tf32", "--strict"), "--no-tf32, --strict: for a GPU, but --device is cpu"),
    ):
        code, _, error = call("train", str(model), *options)
        wrong = 2 if message.startswith("--") or "no --data" in message else 1
        assert (code, message in error) == (wrong, True), error
    code, _, error = call("train", str(model), *data, "--mean", "1,2")
    assert (code, "must be one or three numbers, got '1,2'" in error) == (2, True)


def test_a_state_is_saved_before_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that is broken, or an interrupt, costs none of the steps."""
    seen: list[str] = []
    monkeypatch.setattr(train_loop.state, "save", lambda *_: seen.append("saved"))
    steps: Any = object.__new__(train_loop._Steps)
    steps.args, steps.data = SimpleNamespace(save="state"), SimpleNamespace(batches=3)
    steps.trainer = SimpleNamespace(steps=3, params={}, update=Update())
    steps.log = SimpleNamespace(flush=lambda: seen.append("logged"))

    def evaluate(params: Any) -> None:
        seen.append("evaluates")
        raise ValueError("no image")

    steps.evaluate = evaluate
    for last in (False, True):
        with pytest.raises(ValueError, match="no image"):
            steps._after(last)
    assert seen == ["logged", "saved", "evaluates"] * 2
