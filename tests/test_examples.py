"""The examples run, in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support.children import ROOT, run_script

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHORTER = {"digits.py": ("--steps", "30"), "segment_volumes.py": ("--steps", "20")}


@pytest.mark.longer_cases(
    "autoencoder",
    "digits",
    "segment_volumes",
    "training_step",
    "wavenet_jax",
    why="Relay's stay, and README's",
)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path: Path) -> None:
    done = run_script(path, *SHORTER.get(path.name, ()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout
