"""`benchmarks gpu parallel`: what a process of a row does, rehearsed on CPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import parallel_ways
from benchmarks.parallel_ways import Problem, exposed, gaps
from tests.support.gpu import small_parallel
from tests.support.processes import run_ranks


def test_what_nothing_else_runs_beside() -> None:
    assert exposed([(0, 4), (3, 6)], [(1, 2), (5, 9)]) == 4
    assert exposed([(0, 4)], []) == 4
    assert exposed([], [(0, 4)]) == 0


def test_when_no_kernel_ran() -> None:
    kernels = [(10.0, 12.0, "a"), (11.0, 11.5, "b"), (12.001, 14.0, "c"), (15.0, 16.0, "d")]
    assert gaps(kernels) == {"short": pytest.approx(0.001), "c .. d": 1}


def rehearse(way: str, alone: int | None = None) -> None:
    problem = Problem("small", way, 2, None, "tf32", "cpu", alone)
    ended = run_ranks(
        Path(small_parallel.__file__), 2, json.dumps(problem._asdict()), "1", "1", forked=False,
        warnings="ignore",
    )  # fmt: skip
    for done in ended:
        assert done.returncode == 0, done.stderr
    row = json.loads(ended[0].stdout.splitlines()[-1])
    assert row["all"] > 0
    assert row["scaling"] == pytest.approx(row["all"] / (2 * row["one"]))
    assert [len(of) for of in row["rounds"]["together"]] == [parallel_ways.ROUNDS] * 2


@pytest.mark.longer("two processes that compile networks")
def test_a_row_is_rehearsed() -> None:
    rehearse("eager", alone=4)


@pytest.mark.longer("processes of their own; PyTorch's stay")
@pytest.mark.parametrize("way", ["step", "trainer"])
def test_our_ways(way: str) -> None:
    rehearse(way)
