"""A share of the generator `loops`, and the rows that meet what is kept between steps."""

from __future__ import annotations

import pytest

from .harness import failures
from .loops import ACTIONS, GENERATOR, check

ROWS = (
    "graphs: two batches summed,kept and summed,no leaf,accumulators hook,given up,saved elsewhere",
    "graphs: swapped,usual,usual,functional computed,frozen,grad of some,post hook,both models",
)


@pytest.mark.longer_cases("rest")
@pytest.mark.parametrize("seeds", [range(2), range(2, 6)], ids=["first", "rest"])
def test_share(seeds: range) -> None:
    assert not failures(GENERATOR, seeds)


@pytest.mark.parametrize("line", ROWS)
def test_what_is_kept(line: str) -> None:
    assert not check(line)


@pytest.mark.longer("forty actions")
def test_every_action() -> None:
    assert not check(f"graphs: {','.join(ACTIONS)}")
