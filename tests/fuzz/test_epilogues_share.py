"""A share of the generator `epilogues`."""

from .epilogues import GENERATOR
from .harness import failures


def test_share() -> None:
    assert not failures(GENERATOR, range(6))
