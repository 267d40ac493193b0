"""The benchmark of first minutes on a CPU: ratios of medians, parts that are joined, a budget."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import cpu_compile as bench


def run(way: str, state: str, turn: int, seconds: float) -> bench.Run:
    figures = dict.fromkeys(bench.FIGURES, seconds)
    return {"network": "small", "way": way, "state": state, "turn": turn, **figures}


def runs(way: str, *seconds: float) -> list[bench.Run]:
    return [run(way, state, i, s) for i, s in enumerate(seconds) for state in bench.STATES]


def written(path: Path, runs: list[bench.Run], **facts: object) -> str:
    about = {"cpu": "a", "cores": 2, "torch": "2", "python": "3", "date": "today", **facts}
    path.write_text(json.dumps({**about, "rows": bench.rows_of(runs), "runs": runs}))
    return str(path)


def test_ratios_are_of_medians_and_need_the_other_side() -> None:
    rows = bench.rows_of([*runs("trainer", 1, 2, 9), *runs(bench.OTHER, 8, 4, 4)])
    assert [row["way"] for row in rows] == ["trainer", bench.OTHER]
    assert rows[0]["cold first"] == 2
    assert rows[0]["warm total ratio"] == 0.5
    assert "cold first ratio" not in bench.rows_of(runs("trainer", 1))[0]


def test_parts_of_one_measurement_are_joined(tmp_path: Path) -> None:
    parts = [
        written(tmp_path / "a.json", runs("trainer", 3)),
        written(tmp_path / "b.json", runs(bench.OTHER, 4)),
    ]
    found = bench.merged(parts)
    assert found["rows"][0]["cold first ratio"] == 0.75
    assert {each["part"] for each in found["runs"]} == {0, 1}
    parts.append(written(tmp_path / "c.json", [], cores=4))
    with pytest.raises(ValueError, match=r"c\.json: cores must be .*a\.json's 2, got 4"):
        bench.merged(parts)


def test_what_there_is_when_the_minutes_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measured(name: str, way: str, folder: str) -> dict[str, float]:
        asked.append((name, way, folder))
        return dict.fromkeys(bench.FIGURES, float(len(asked)))

    path = tmp_path / "a.json"
    monkeypatch.setattr(bench, "measured", measured)
    words = "--networks small,unet --ways trainer,inductor --minutes 0 --json"
    monkeypatch.setattr(sys, "argv", ["cpu_compile", *words.split(), str(path)])
    assert bench.main() == 0
    assert len(asked) == 2  # a cold process and a warm one, with one folder of caches
    assert len({folder for _, _, folder in asked}) == 1
    assert [each["state"] for each in json.loads(path.read_text())["runs"]] == ["cold", "warm"]
    words = words.replace("--minutes 0", "--turns 2")
    monkeypatch.setattr(sys, "argv", ["cpu_compile", *words.split(), str(path)])
    bench.main()
    order = [(name, way) for name, way, _ in asked[2::2]]
    assert order == 2 * [(n, w) for n in ("small", "unet") for w in ("trainer", "inductor")]
