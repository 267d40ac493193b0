"""What a machine can do at most is the same from run to run, whatever runs beside."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from legalize.cpu import host_target, roofline
from legalize.cpu.roofline import agreed
from relay_wgrad.cores import configure_threads


@pytest.mark.parametrize(
    ("rates", "found", "tries"),
    [
        ([10, 9.8], 10, 2),
        ([5, 10, 5, 9.9, 20], 10, 4),  # half of it is what another program has left
        ([5, 20, 5.1, 5, 5, 5, 5, 5, 5], 5.1, 9),  # no other try comes to the best
        ([1, 2, 4, 8, 16, 32, 64, 128, 256, 512], 256, 9),  # at last the best of them all
    ],
)
def test_the_best_of_two_that_agree(rates: list[float], found: float, tries: int) -> None:
    given = itertools.count()
    assert agreed(lambda: rates[next(given)], apart=0) == found
    assert next(given) == tries


@pytest.mark.longer("keeps all cores busy; what agrees is above")
def test_other_programs_on_the_cores_change_no_ceiling() -> None:
    """A program for each core, and again half as many: by the clock the rate would be a half."""
    threads = configure_threads()
    alone = roofline._multiply_adds(host_target(threads), threads)
    busy = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(busy) for _ in range(threads + (threads + 1) // 2)]
    try:
        beside = roofline._multiply_adds(host_target(threads), threads)
    finally:
        for each in others:
            each.kill()
            each.wait()
    assert beside == pytest.approx(alone, rel=0.2)
