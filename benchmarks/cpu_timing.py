"""Times on a CPU, taken in turns by processes that stand still between theirs; and of its cores.

A process makes what is timed and says `ready`; `best` asks each for its turns.  In one process the
threads of one side's pool would still wait for work, asking again and again, in the other's turn.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.child import Worker
from relay_wgrad.cores import configure_threads

Call = Callable[[], Any]

# A turn of a candidate: calls for so many seconds, but no fewer and no more than so many calls.
_TURN, _LEAST, _MOST = 0.01, 2, 20
# Where others use the machine a kernel's threads may share a core for as long as some turns: more
# of them, up to so many times the rounds and for so many seconds, until two agree to some percent.
_MORE, LONGEST, _SAME = 6, 6.0, 1.03
# Of the scheduler's tick: a time so near to some ticks is a thread's that waited.  3.944 ms were
# one of 4, of a kernel that took 0.14 in the next run.
_NEAR = 0.02

_COARSE = 6  # Linux's CLOCK_MONOTONIC_COARSE, which goes on by ticks

_ready: list[Call] = []  # of this process
_clock: list[Callable[[], float]] = [time.perf_counter]  # of its turns


class Times(NamedTuple):
    """Shortest times of some candidates in seconds, and whether each was confirmed by another.

    row : what a benchmark's row says of that; a reason where one is the scheduler's, not a call's.
    """

    seconds: list[float]
    confirmed: bool
    has_ticks: bool

    @property
    def row(self) -> dict[str, Any]:
        told = {"reason": "a time of whole ticks of the scheduler"} if self.has_ticks else {}
        return {"confirmed": self.confirmed, **told}


@contextmanager
def workers(count: int) -> Iterator[list[Worker]]:
    """So many processes, which end with the scope."""
    made = [Worker() for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.end()


def configure(threads: int | None) -> int:
    """In a process: TVM's pool and PyTorch's, of so many threads at most; returns their number.

    One thread's turns are in processor time, which other programs on the core hardly change.
    """
    import torch

    threads = configure_threads(threads)
    torch.set_num_threads(threads)
    _clock[:] = [time.process_time if threads == 1 else time.perf_counter]
    return threads


def ready(*calls: Call) -> None:
    """In a process: its next turns are of these calls."""
    _ready[:] = calls


def turns() -> list[float]:
    """In a process: the shortest of some calls of each; the first is not timed."""
    return [_turn(call) for call in _ready]


def best(sides: Sequence[Worker], rounds: int, longest: float = LONGEST, *, threads: int) -> Times:
    """The shortest time of each candidate of each side, one after another.  The sides take turns.

    After `rounds` turns of each all have more of them, until each one's shortest time is confirmed
    by a second turn, or the limits are reached, of which `longest` is in seconds.

    threads : of the sides; one thread's times are a processor's, which has no ticks.
    """

    def confirmed(times: Sequence[float]) -> bool:
        return is_confirmed(times, threads > 1)

    times: list[list[float]] = []  # of a round
    begin = time.perf_counter()
    for number in range(_MORE * rounds):
        if number >= rounds and (
            all(map(confirmed, zip(*times, strict=True))) or time.perf_counter() - begin > longest
        ):
            break
        times.append([seconds for side in sides for seconds in side(turns)])
    of_each = list(zip(*times, strict=True))
    shortest = [sorted(each)[:2] for each in of_each]
    return Times(
        [each[0] for each in shortest], all(map(confirmed, of_each)),
        threads > 1 and any(_is_ticks(*each) for each in shortest),
    )  # fmt: skip


def _turn(call: Call) -> float:
    call()
    (clock,), shortest = _clock, float("inf")
    begin = clock()
    for number in range(_MOST):
        start = clock()
        call()
        end = clock()
        shortest = min(shortest, end - start)
        if number + 1 >= _LEAST and end - begin > _TURN:
            break
    return shortest


def is_confirmed(times: Sequence[float], by_clock: bool = True) -> bool:
    """Whether the two shortest are the same, more or less, and not whole ticks of the scheduler."""
    first, *others = sorted(times)
    if not others or others[0] > _SAME * first:
        return False
    return not (by_clock and _is_ticks(first, others[0]))


def _is_ticks(*times: float) -> bool:
    tick = time.clock_getres(_COARSE)
    return all(each > tick / 2 and abs(each / tick - round(each / tick)) < _NEAR for each in times)


def processor_time() -> float:
    """Of this process, of all that it has waited for, and of those that they waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
