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


def best(candidates: Sequence[Call], rounds: int) -> list[float]:
    """Shortest time of each in seconds.  They take turns; a turn's first call is not timed."""
    times = [float("inf")] * len(candidates)
    for _ in range(rounds):
        for i, call in enumerate(candidates):
            time.sleep(_PAUSE)
            call()
            begin = time.perf_counter()
            for number in range(_MOST):
                start = time.perf_counter()
                call()
                end = time.perf_counter()
                times[i] = min(times[i], end - start)
                if number + 1 >= _LEAST and end - begin > _TURN:
                    break
    return times


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
