"""A share of the generator `narrow`."""

from .harness import failures
from .narrow import GENERATOR


def test_share() -> None:
    assert not failures(GENERATOR, range(6))
