"""Rows that are kept in a file: what the options of all benchmarks mean; and the list of these."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import programs
from benchmarks.kept import Rows, add_options

KEYS = [("b", 2), ("a", 1), ("a", 3)]


def rows_of(*words: str) -> Rows:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return Rows(parser, parser.parse_args(words), ("name", "batch"), {"date": "today"})


def test_rows_are_measured_once(tmp_path: Path) -> None:
    path, asked, broken = str(tmp_path / "rows.json"), [], {("a", 3)}

    def measured(*key: Any) -> dict[str, Any]:
        asked.append(key)
        row = {"name": key[0], "batch": key[1]}
        return {**row, "reason": "no"} if key in broken else row

    rows = rows_of("--json", path)
    rows.measure(KEYS[:2], measured)
    rows = rows_of("--json", path, "--resume")
    rows.measure(KEYS, measured)
    assert asked == KEYS
    assert rows.of(reversed(KEYS))[0]["reason"] == "no"
    broken.clear()
    rows_of("--json", path, "--failed").measure(KEYS, measured)
    assert asked == [*KEYS, ("a", 3)]
    kept = json.loads(Path(path).read_text())
    assert kept["date"] == "today"
    assert [(row["name"], row["batch"]) for row in kept["rows"]] == sorted(KEYS)
    assert not any("reason" in row for row in kept["rows"])


def test_without_time_nothing_is_measured(tmp_path: Path) -> None:
    rows = rows_of("--time-budget", "0")
    rows.measure(KEYS, pytest.fail)
    assert rows.of(KEYS) == []
    with pytest.raises(SystemExit):
        rows_of("--resume")


def test_each_program_says_what_it_measures() -> None:
    found = programs()
    assert {"cpu", "gpu", "networks"} <= {*found}
    assert "kept" not in found
    assert all(found.values())
