"""`relay_wgrad.timing`: the least of many runs, on a machine that is busy now and then."""

from __future__ import annotations

import time

import pytest

from relay_wgrad import timing


def test_short_runs_are_repeated_and_long_ones_are_not() -> None:
    calls = 0

    def short() -> None:
        nonlocal calls
        calls += 1

    begin = time.perf_counter()
    found = timing.shortest(short, rounds=1, seconds=0.05)
    assert time.perf_counter() - begin >= 0.05
    assert calls > 50
    assert found.seconds < 1e-3
    calls = 0

    def long() -> None:
        short()
        time.sleep(0.03)

    found = timing.shortest(long, rounds=3, seconds=0.0)
    assert calls == 3 + 1  # the first does not count
    assert found.seconds >= 0.03


def test_the_least_counts_and_the_scatter_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second run loses its core for 8 ms."""
    now = 0.0
    runs = 0

    def run() -> None:
        nonlocal now, runs
        runs += 1
        now += 3e-5 if runs % 2 else 8e-3

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)
    found = timing.shortest(run)
    assert found.seconds == pytest.approx(3e-5)
    assert found.scatter > 100
    assert "scatter by a factor of" in timing.warning(found.scatter)


def test_steady_times_are_no_warning() -> None:
    assert timing.scatter([1.0, 1.1, 2.0]) < timing.NOISY
    assert timing.warning(timing.scatter([1.0, 1.1, 2.0])) == ""
    assert timing.scatter([1.0] * 95 + [50.0] * 5) == 1.0  # a rare outlier is none
