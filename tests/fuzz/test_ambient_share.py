"""A share of the generator `ambient`, and what it was written for."""

from __future__ import annotations

import pytest

from .ambient import GENERATOR, check
from .harness import failures

FIRST = (
    "plain/shape checkpoint", "norm/made flops", "plain/shape saved_hooks,no_grad",
    "float32/first autocast", "makes/made default_dtype", "weights/from_torch cached",
    "plain/operator inference", "plain/compiled dispatch_mode",
)  # fmt: skip


@pytest.mark.longer_cases("rest")
@pytest.mark.parametrize("seeds", [range(4), range(4, 8)], ids=["first", "rest"])
def test_share(seeds: range) -> None:
    assert not failures(GENERATOR, seeds)


@pytest.mark.share(5)
@pytest.mark.parametrize("line", FIRST)
def test_first_calls(line: str) -> None:
    said = check(line) or ""
    assert not said or "fell back" in said
