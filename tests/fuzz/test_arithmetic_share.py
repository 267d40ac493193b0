"""A share of the generator `arithmetic`."""

from .arithmetic import GENERATOR
from .harness import failures


def test_share() -> None:
    assert not failures(GENERATOR, range(8))
