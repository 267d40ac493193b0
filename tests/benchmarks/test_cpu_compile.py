"""The benchmark of first minutes on a CPU: ratios of medians, and the order of its processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import cpu_compile as bench
from benchmarks.__main__ import main


def runs(way: str, *seconds: float) -> list[bench.Row]:
    return [
        {"network": "small", "way": way, "turn": i,
         **{state: dict.fromkeys(bench.FIGURES, s) for state in bench.STATES}}
        for i, s in enumerate(seconds)
    ]  # fmt: skip


def test_ratios_are_of_medians_and_need_the_other_side() -> None:
    found = [*runs("trainer", 1, 2, 9), *runs(bench.OTHER, 8, 4, 4)]
    rows = bench.medians(found)
    assert [row["way"] for row in rows] == ["trainer", bench.OTHER]
    assert rows[0]["cold first"] == 2
    assert rows[0]["warm total ratio"] == 0.5
    assert "cold first ratio" not in bench.medians(runs("trainer", 1))[0]
    assert "trainer: cold first 0.50" in list(bench.summary(found))[-1]


def test_processes_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(name: str, way: str, folder: str) -> dict[str, float]:
        asked.append((name, way, folder))
        return dict.fromkeys(bench.FIGURES, float(len(asked)))

    monkeypatch.setattr(bench, "measured", measured)
    path = tmp_path / "a.json"
    words = "cpu first --suite small,unet --ways trainer,inductor --turns 2 --json"
    assert main([*words.split(), str(path)]) == 0
    order = [(name, way) for name, way, _ in asked[::2]]
    assert order == 2 * [(n, w) for n in ("small", "unet") for w in ("trainer", "inductor")]
    # A cold process and a warm one, with one folder of caches.
    assert len({folder for _, _, folder in asked}) == len(asked) / 2
    row = json.loads(path.read_text())["rows"][0]
    assert (row["cold"]["first"], row["warm"]["first"]) == (1.0, 2.0)
