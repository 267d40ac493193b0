"""A share of the generator `open_batch`."""

import pytest

from .harness import failures
from .open_batch import GENERATOR


@pytest.mark.longer_cases("rest")
@pytest.mark.parametrize("seeds", [range(1), range(1, 2)], ids=["first", "rest"])
def test_share(seeds: range) -> None:
    assert not failures(GENERATOR, seeds)
