"""Training on digits beside PyTorch's: the same losses, and the same bits when resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main

pytestmark = pytest.mark.longer("two trainings; the examples have one")


def test_sides_agree(tmp_path: Path) -> None:
    path, png = tmp_path / "rows.json", tmp_path / "curves.png"
    given = ["--sides", "cpu,torch:cpu", "--seeds", "1", "--steps", "12", "--json", str(path)]
    assert main(["cpu", "digits", *given, "--png", str(png)]) == 0
    ours, theirs = (row["runs"][0] for row in json.loads(path.read_text())["rows"])
    assert ours["resumed"]
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-3)
    assert png.stat().st_size > 1000
