"""Sides that take turns: processes of their own, of which one runs at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cpu_timing
from tests.support.timed_calls import broken, sleeping


def test_sides_take_turns_and_stand_still_between_them() -> None:
    with cpu_timing.workers(2) as sides:
        pids = [side(sleeping, t) for side, t in zip(sides, ([0.002, 0.006], [0.003]), strict=True)]
        assert [_state(pid) for pid in pids] == ["T", "T"]
        found = cpu_timing.best(sides, 2, 1.0, threads=2)
        assert found.seconds == pytest.approx([0.002, 0.006, 0.003], rel=0.5)
        assert [_state(pid) for pid in pids] == ["T", "T"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_side_that_fails_says_why() -> None:
    with cpu_timing.workers(1) as (side,):
        with pytest.raises(RuntimeError, match="ValueError: no such layer"):
            side(broken, "error")
        assert side(sleeping, []) > 0
        with pytest.raises(RuntimeError, match="exit status 3"):
            side(broken, "end")


@pytest.mark.parametrize(
    ("times", "confirmed"),
    [
        ((0.0100, 0.0102), True), ((0.0100, 0.0110), False), ((0.0100,), False),
        ((0.0160, 0.01601), False), ((0.0160, 0.0163), True), ((0.0001, 0.0001), True),
    ],
)  # fmt: skip
def test_a_time_of_whole_ticks_is_not_confirmed(
    times: tuple[float, ...], confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that another's kept from its core goes on at the scheduler's next tick."""
    monkeypatch.setattr(cpu_timing.time, "clock_getres", lambda clock: 0.004)
    assert cpu_timing.is_confirmed(times) == confirmed
    assert cpu_timing.is_confirmed(times, by_clock=False) == (
        confirmed or times == (0.0160, 0.01601)
    )


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
