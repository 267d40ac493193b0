"""The parts of a compilation are measured and shown; that of a network is by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compile_time


def test_a_part_has_what_was_done_since_the_last_one() -> None:
    clock = compile_time.Clock(time.perf_counter() - 5)
    clock.part("imports")
    subprocess.run([sys.executable, "-c", "sum(range(10**6))"], check=True)
    clock.part("a child")
    clock.part("nothing")
    assert list(clock.parts) == ["imports", "a child", "nothing"]
    assert clock.parts["imports"][0] >= 5
    assert clock.parts["imports"][1] > 0
    assert clock.parts["a child"][0] > 0
    assert clock.parts["a child"][1] > 0
    assert clock.parts["nothing"][1] <= 0.1


def test_rows_are_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(model: str, dtype: str, batch: int) -> dict[str, Any]:
        assert (dtype, batch) == ("f16", 4)
        return {"empty": {"TVM": [2.0, 2.5], "the library": [8.0, 30.0]},
                "full": {"TVM": [2.0, 2.5], "the library": [0.25, 0.25]}}  # fmt: skip

    monkeypatch.setattr(compile_time, "measured", measured)
    path = tmp_path / "times.json"
    given = ["--models", "resnet50,unet", "--dtype", "f16", "--batch", "4", "--json", str(path)]
    assert compile_time.main(given) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["model"], row["batch"]) for row in rows] == [("resnet50", 4), ("unet", 4)]
    assert "10.0 (32.5)" in (shown := capsys.readouterr().out)
    assert "2.2 (2.8)" in shown
