"""A share of the generator `operators`."""

from .harness import failures
from .operators import GENERATOR


def test_share() -> None:
    assert not failures(GENERATOR, (2, 8, 9, 12))  # of each way, two of lines
