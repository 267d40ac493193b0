"""Training on digits beside PyTorch's: the same losses, and the same bits when resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import digits_curves

pytestmark = pytest.mark.longer("two trainings; the examples have one")


def test_sides_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, png = tmp_path / "rows.json", tmp_path / "curves.png"
    given = ["--sides", "cpu,torch:cpu", "--seeds", "1", "--steps", "12"]
    argv = ["digits_curves", *given, "--json", str(path), "--png", str(png)]
    monkeypatch.setattr("sys.argv", argv)
    assert digits_curves.main() == 0
    ours, theirs = (row["runs"][0] for row in json.loads(path.read_text())["rows"])
    assert ours["resumed"]
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-3)
    assert png.stat().st_size > 1000

    again = tmp_path / "again.json"
    argv[1:] = ["--sides", "", *given[2:], "--beside", str(path), "--json", str(again)]
    assert digits_curves.main() == 0
    assert json.loads(again.read_text())["rows"] == json.loads(path.read_text())["rows"]
    argv[argv.index("--steps") + 1] = "13"
    with pytest.raises(ValueError, match="1 seeds of 12 steps, not 1 of 13"):
        digits_curves.main()
