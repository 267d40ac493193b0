"""Times on a CPU, taken in turns; and of its cores."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Call = Callable[[], Any]

# A turn of a candidate: calls for so many seconds, but no fewer and no more than so many calls.
_TURN, _LEAST, _MOST = 0.01, 2, 20
# Idle threads of OpenMP's and TVM's pools spin for a while: a pause before a turn lets them sleep.
_PAUSE = 0.012
# Where others use the machine a kernel's threads may share a core for as long as some turns: more
# of them, up to so many times the rounds and for so many seconds, until two agree to some percent.
_MORE, LONGEST, _SAME = 6, 6.0, 1.03


class Times(NamedTuple):
    """Shortest times of some candidates in seconds, and whether each was confirmed by another."""

    seconds: list[float]
    confirmed: bool


def best(candidates: Sequence[Call], rounds: int, longest: float = LONGEST) -> Times:
    """The shortest time of each.  They take turns; a turn's first call is not timed.

    After `rounds` turns of each all have more of them, until each one's shortest time is confirmed
    by a second turn, or the limits are reached, of which `longest` is in seconds.
    """
    turns: list[list[float]] = [[] for _ in candidates]
    begin = time.perf_counter()
    for number in range(_MORE * rounds):
        if number >= rounds and (
            all(_is_confirmed(times) for times in turns) or time.perf_counter() - begin > longest
        ):
            break
        for call, times in zip(candidates, turns, strict=True):
            times.append(_turn(call))
    return Times([min(times) for times in turns], all(map(_is_confirmed, turns)))


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


def processor_time() -> float:
    """Of this process, of all that it has waited for, and of those that they waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
