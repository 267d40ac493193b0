"""The benchmark of first minutes on a CPU: ratios of medians, and the order of its processes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from benchmarks import cpu_compile as bench
from benchmarks.__main__ import main
from benchmarks.runner import Rows


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
    assert "of inductor's: cold first 0.50, cold total" in next(iter(bench.summary(found)))


def test_processes_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(name: str, way: str, folder: str, _seconds: float) -> dict[str, float]:
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


def test_each_process_has_cores_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two groups of one core two processes run at a time, on different cores."""
    cores = sorted(os.sched_getaffinity(0))
    assert bench.groups([0, 2, 4, 6, 8], 2) == [{0, 2}, {4, 6}]
    assert bench.groups([0, 2, 4], 0) == [{0, 2, 4}]
    if len(cores) < 2:
        pytest.skip("one core")
    both, seen = threading.Barrier(2, timeout=20), []

    def measured(*_: object) -> dict[str, float]:
        both.wait()
        seen.append(frozenset(os.sched_getaffinity(0)))
        both.wait()
        return dict.fromkeys(bench.FIGURES, 1.0)

    monkeypatch.setattr(bench, "measured", measured)
    monkeypatch.setattr(bench, "usable_cores", lambda: cores[:2])
    words = "cpu first --suite small --ways trainer,inductor --turns 1 --cores-each 1 --json"
    assert main([*words.split(), str(tmp_path / "a.json")]) == 0
    assert set(seen) == {frozenset({core}) for core in cores[:2]}
    assert sorted(os.sched_getaffinity(0)) == cores


@pytest.mark.parametrize("ends", bench.STATES)
def test_the_end_of_time_costs_no_row(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has ended is in the file, and its medians are shown; what has not is no failure."""
    calls = []

    def measured(_name: str, way: str, _folder: str, seconds: float) -> bench.Row:
        calls.append(way)
        # The second way's process is ended by the clock, cold or warm.
        if len(calls) == 3 + bench.STATES.index(ends):
            monkeypatch.setattr(Rows, "seconds_left", property(lambda _: -1.0))
            return {"reason": f"took more than {seconds:g} s"}
        return dict.fromkeys(bench.FIGURES, 1.0)

    monkeypatch.setattr(bench, "measured", measured)
    monkeypatch.setattr(Rows, "seconds_left", property(lambda _: 60.0))
    path = tmp_path / "a.json"
    words = "cpu first --suite small --ways trainer,inductor --turns 2 --json"
    assert main([*words.split(), str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [sorted(set(row) & set(bench.STATES)) for row in rows] == (
        [["cold", "warm"]] if ends == "cold" else [["cold", "warm"], ["cold"]]
    )
    assert not any("reason" in row for row in rows)
    assert len(list(bench.summary(rows))) == (1 if ends == "cold" else 2)
