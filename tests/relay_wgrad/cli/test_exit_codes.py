"""Options that contradict each other are wrong arguments, whichever part of a command finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.training_models import residual_net

WRONG = {
    "both lengths": ("train MODEL --epochs 2 --steps 3 --data DATA", "--epochs 2 and --steps 3"),
    "epochs of nothing": ("train MODEL --epochs 2", "an epoch is of --data, which is not given"),
    "a test of nothing": ("train MODEL --test DATA", "there is no --data to train on"),
    "means of no folder": ("train MODEL --data DATA --augment crop", "is a folder of images"),
    "a GPU's option": ("train MODEL --device cpu --benchmark", "for a GPU, but --device is cpu"),
    "decay of nothing": ("train MODEL --decay all", "there is no --weight-decay"),
    "a loss that is none": ("train MODEL --loss none", "argument --loss"),
    "no steps": ("train MODEL --steps 0", "argument --steps"),
    "no command": ("", "the following arguments are required: COMMAND"),
    "another command": ("trian MODEL", "invalid choice: 'trian'"),
    "another option": ("inspect MODEL --nothing", "unrecognized arguments: --nothing"),
    "no backend": ("partition MODEL --backends nowhere", "nowhere"),
    "a layout": ("inspect MODEL --layout NHCW", "NHCW"),
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    model, data = tmp_path / "mine.onnx", tmp_path / "mine.npz"
    onnx.save(residual_net(blocks=0, size=6), model)
    np.savez(data, x=np.zeros((8, 3, 6, 6), "float32"), labels=np.zeros(8, "int64"))
    return {"MODEL": str(model), "DATA": str(data)}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case: str, files: dict[str, str], call: Any) -> None:
    command, message = WRONG[case]
    code, text, error = call(*(files.get(word, word) for word in command.split()))
    assert code == 2, error
    assert message in error
    assert error.splitlines()[-1].startswith("python -m relay_wgrad")
    assert text == ""


def test_what_fails_otherwise(tmp_path: Path, call: Any) -> None:
    """A file that is not there was not mistyped as far as anybody knows."""
    code, _, error = call("train", str(tmp_path / "nothing.onnx"))
    assert code == 1
    assert "nothing.onnx" in error
