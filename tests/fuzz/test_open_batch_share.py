"""A share of the generator `open_batch`."""

from .harness import failures
from .open_batch import GENERATOR


def test_share() -> None:
    assert not failures(GENERATOR, range(2))
