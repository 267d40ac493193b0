"""A share of the generator `staleness`, and what it was written for."""

from __future__ import annotations

import pytest

from .harness import REFUSED, failures
from .staleness import GENERATOR, check

FIRST = {
    "hook/same 0": "",
    "float/same 0": "",
    "list/both 0,1": "",
    "norm/both 0,1": "",
    "dropout/same 0": "",
    "read/batch 0": "",
    "backward hook/same 0": "backward hooks of 'layer.1' would be lost",
    "recording hook/same 0": "forward changes a hook of 'layer.0'",
    "counts/same 0": "forward changes 'n' of 'layer'",
}


@pytest.mark.longer_cases("rest")
@pytest.mark.parametrize("seeds", [range(3), range(3, 8)], ids=["first", "rest"])
def test_share(seeds: range) -> None:
    assert not failures(GENERATOR, seeds)


@pytest.mark.share(2)  # what is refused, and what is not
@pytest.mark.parametrize("line", FIRST)
def test_what_was_ignored(line: str) -> None:
    """Each gave the numbers of before, without a word."""
    said = check(line) or ""
    assert FIRST[line] in said
    assert said.startswith(REFUSED) == bool(FIRST[line])
