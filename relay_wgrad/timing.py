"""Times on a machine that others use too: the least of many runs, and how far they scatter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Waking threads may share a core for a moment: a pause lets the scheduler part them.
_PAUSE = 0.004
# On a busy machine the scheduler takes cores away for some milliseconds at a time.
_BURST = 0.01
NOISY = 3.0
"""A scatter above this says that the machine was busy."""


@dataclass(frozen=True)
class Timing:
    """The least of some runs in seconds, and their `scatter`."""

    seconds: float
    scatter: float


def scatter(times: Sequence[float]) -> float:
    """How many times the least of some times the slowest tenth of them takes, at least."""
    return float(np.quantile(times, 0.9) / max(min(times), 1e-9))


def shortest(call: Callable[[], Any], rounds: int = 1, seconds: float = 0.1) -> Timing:
    """Times a function: `rounds` runs or more, until they have taken `seconds`.

    Short runs come in bursts, each after a pause and a run that does not count: it wakes the
    threads.
    """
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < rounds or time.perf_counter() - begin < seconds:
        time.sleep(_PAUSE)
        if not times or min(times) < _BURST:
            call()
        burst = time.perf_counter()
        while (now := time.perf_counter()) - burst < _BURST:
            call()
            times.append(time.perf_counter() - now)
    return Timing(min(times), scatter(times))


def warning(most: float) -> str:
    """What to say of times with this scatter; "" where they are steady."""
    if most <= NOISY:
        return ""
    return (
        f"times scatter by a factor of {most:.1f}: the machine is busy, or its clock changes; the"
        " least of several runs is shown"
    )
