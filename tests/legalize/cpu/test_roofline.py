"""What a machine can do at most is the same from run to run, whatever runs beside."""

from __future__ import annotations

import itertools

import pytest

from legalize.cpu.roofline import agreed


@pytest.mark.parametrize(
    ("rates", "least", "found", "tries"),
    [
        ([10, 9.8], 0, 10, 2),
        ([5, 10, 5, 9.9, 20], 0, 10, 4),  # half of it is what another program has left
        ([5, 5, 10, 9.9], 8, 10, 4),  # in both of the first tries
        ([1, 2, 4, 8, 16, 32, 64, 128, 256, 512], 0, 256, 9),  # at last the best of them all
    ],
)
def test_the_best_of_two_that_agree(
    rates: list[float], least: float, found: float, tries: int
) -> None:
    given = itertools.count()
    assert agreed(lambda: rates[next(given)], apart=0, least=least) == found
    assert next(given) == tries
