"""A share of the generator `plans`."""

from .harness import failures
from .plans import GENERATOR


def test_share() -> None:
    assert not failures(GENERATOR, range(2))
