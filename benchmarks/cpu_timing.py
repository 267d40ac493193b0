"""The machine's part of `benchmarks.cpu`: its name, and times taken in turns."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Call = Callable[[], Any]

# A turn of a candidate: calls for so many seconds, but no fewer and no more than so many calls.
_TURN, _LEAST, _MOST = 0.01, 2, 20
# Idle threads of OpenMP's and TVM's pools spin for a while: a pause before a turn lets them sleep.
_PAUSE = 0.012
# Where others use the machine a kernel's threads may share a core for as long as some turns: more
# of them, up to so many times the rounds and for so many seconds, until two agree to some percent.
_MORE, _LONGEST, _SAME = 6, 6.0, 1.03


def best(candidates: Sequence[Call], rounds: int) -> list[float]:
    """Shortest time of each in seconds.  They take turns; a turn's first call is not timed.

    After `rounds` turns of each all have more of them, until each one's shortest time is confirmed
    by a second turn, or the limits are reached.
    """
    turns: list[list[float]] = [[] for _ in candidates]
    begin = time.perf_counter()
    for number in range(_MORE * rounds):
        if number >= rounds and (
            all(_is_confirmed(times) for times in turns) or time.perf_counter() - begin > _LONGEST
        ):
            break
        for call, times in zip(candidates, turns, strict=True):
            times.append(_turn(call))
    return [min(times) for times in turns]


def _turn(call: Call) -> float:
    """The shortest of some calls."""
    time.sleep(_PAUSE)
    call()
    shortest = float("inf")
    begin = time.perf_counter()
    for number in range(_MOST):
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        shortest = min(shortest, end - start)
        if number + 1 >= _LEAST and end - begin > _TURN:
            break
    return shortest


def _is_confirmed(times: Sequence[float]) -> bool:
    """Whether the two shortest are the same, more or less."""
    first, *others = sorted(times)
    return bool(others) and others[0] <= _SAME * first


def cpu_model() -> str:
    """The CPU's name with what tells its kind: an anonymous name is all that some hosts give."""
    path = Path("/proc/cpuinfo")
    facts = dict[str, str]()
    if path.exists():
        for line in path.read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            facts[key.strip()] = value.strip()
    name = facts.get("model name", platform.processor() or platform.machine())
    words = [f"{x} {facts[key]}" for x, key in (("family", "cpu family"), ("model", "model"))
             if key in facts]  # fmt: skip
    return ", ".join([name, *words])
