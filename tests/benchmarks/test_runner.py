"""The runner of all benchmarks: options, rows that are kept, tables; and the cases of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import child, figures, runner
from benchmarks.__main__ import BENCHMARKS, about, main
from benchmarks.runner import Benchmark, Case, Option, Row
from tests.support.ending_rows import ended

COLUMNS = (("network",), ("ms", None, ".1f"), ("µs", "ms", ".0f", 1e3),
           ("first", lambda row: row["losses"][0]), ("deep", "a.b"), ("none",))  # fmt: skip


class Bench:
    """A benchmark of networks, some of which are broken; what it was asked to measure."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: set[str] = set()

    def one(self, case: Case) -> Row:
        name = case.key["network"]
        self.asked.append(name)
        if name in self.broken:
            raise ValueError("no\nmore")
        return {"ms": 2.0, "ratio": {"a": 0.5, "b": 2.0}.get(name, 1.0), "losses": [1, 2],
                "a": {"b": "c"}}  # fmt: skip

    def run(self, *words: str) -> int:
        benchmark = Benchmark(
            lambda args: (Case({"network": name, "batch": args.batch}) for name in args.suite),
            lambda cases, args: self.one, COLUMNS, suites=("a", "b", "c"), by=("network",),
            options={"batch": Option(2, "images"), "kinds": Option(("x",), "", ("x", "y")),
                     "steps": Option(3, "of it")},
        )  # fmt: skip
        args = runner.parsed(benchmark, words, "bench", "What it measures.", False)
        return runner.run(benchmark, "cpu bench", args)


def test_rows_are_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, bench = tmp_path / "rows.json", Bench()
    bench.broken = {"c"}
    given = ("--json", str(path))
    assert bench.run("--suite", "a", *given) == 0
    assert bench.run(*given, "--resume") == 1
    assert bench.asked == ["a", "b", "c"]
    assert bench.run(*given, "--resume") == 1
    said = capsys.readouterr().out
    assert "network a: 1 rows, geometric mean 0.500" in said
    assert "all: 2 rows, geometric mean 1.000, 0.50 to 2.00" in said
    assert "ValueError: no" in said
    assert "3 of 3 rows, 1 failed" in said
    kept = json.loads(path.read_text())
    assert {row["network"] for row in kept["rows"]} == {"a", "b", "c"}
    assert kept["benchmark"] == "cpu bench"
    assert kept["machine"]["cores"] > 0
    assert kept["versions"]["torch"]
    assert kept["options"] == {"steps": 3}  # the batch is a part of the key
    assert all(row["date"] == kept["date"] for row in kept["rows"])


def test_figures_read_what_a_run_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Bench().run("--suite", "a", "--json", str(tmp_path / "rows.json"))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    facts, rows = figures.read("rows")
    assert facts["cpu"] == facts["device"]
    assert (facts["steps"], facts["batch"], facts["torch"]) == (3, 2, torch.__version__)
    assert rows[0]["network"] == "a"


def test_rows_of_another_machine_are_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, bench = tmp_path / "rows.json", Bench()
    bench.run("--json", str(path))
    for what, options in (("options", ("--steps", "4")), ("machine", ())):
        if what == "machine":
            path.write_text(path.read_text().replace('"cores": ', '"cores": 9'))
        with pytest.raises(SystemExit):
            bench.run("--json", str(path), "--resume", *options)
        assert f"other {what} than this run's" in capsys.readouterr().err


def test_an_option_that_is_gone_does_not_count(tmp_path: Path) -> None:
    path, bench = tmp_path / "rows.json", Bench()
    bench.run("--json", str(path))
    path.write_text(path.read_text().replace('"steps": 3', '"steps": 3, "gone": "first"'))
    bench.run("--json", str(path), "--resume")
    assert bench.asked == ["a", "b", "c"]


def test_without_time_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    assert bench.run("--time-budget", "0") == 0
    assert bench.run("--dry", "--batch", "7") == 0
    assert bench.asked == []
    said = capsys.readouterr().out
    assert "again with --json FILE --resume" in said
    assert "a 7\nb 7\nc 7\n3 cases" in said


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    for wrong in (["--resume"], ["--suite", "d"], ["--kinds", "x,z"], ["--batch", "two"]):
        with pytest.raises(SystemExit):
            bench.run(*wrong)
    assert "z: expected some of x, y" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench.run("--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "some of x, y (default x)" in said
    assert "some of a, b, c (default all)" in said


def test_cells() -> None:
    row = {"network": "a", "ms": 2.0, "losses": [1], "a": {"b": "c"}}
    assert [runner.cell(row, column) for column in COLUMNS] == ["a", "2.0", "2000", "1", "c", ""]
    assert [runner.cell({"reason": "no"}, column) for column in COLUMNS] == [""] * len(COLUMNS)


# ---- rows in processes of their own --------------------------------------------------------------


def test_a_row_in_a_process() -> None:
    assert child.row(ended, "well") == {"how": "well"}
    assert child.row(ended, "error") == {"reason": "ValueError: no such network"}
    assert "ended by SIGKILL" in child.row(ended, "signal")["reason"]
    assert child.row(ended, "well", seconds=0.0) == {"reason": "took more than 0 s"}


# ---- all benchmarks ------------------------------------------------------------------------------


def test_each_says_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "nothing"]) == 2
    assert main([]) == 0
    said = capsys.readouterr().out
    for device, names in BENCHMARKS.items():
        for name, module in names.items():
            assert f"{device} {name}" in said
            assert about(module).splitlines()[0].endswith(".")


@pytest.mark.parametrize(
    ("device", "name"), [(device, name) for device in BENCHMARKS for name in BENCHMARKS[device]]
)
def test_cases_are_made_on_any_machine(
    device: str, name: str, capsys: pytest.CaptureFixture[str], registered: None
) -> None:
    """Every suite's, with the imports of its module; each has a key of its own, in JSON."""
    small = ["--dtypes", "f16"] if (device, name) == ("gpu", "convolutions") else []
    assert main([device, name, "--dry", *small]) == 0
    *texts, count = capsys.readouterr().out.strip().splitlines()
    assert int(count.split()[0]) == len(texts) > 0
    assert len(set(texts)) == len(texts)


def test_a_gpu_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        main(["gpu", "trainer"])
    assert "it needs an NVIDIA GPU" in capsys.readouterr().err
