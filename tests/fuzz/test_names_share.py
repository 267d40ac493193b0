"""A share of the generator `names`, and a fault that it finds."""

from __future__ import annotations

import pytest

from relay_wgrad.frontend.torch import reader

from .harness import failures
from .names import GENERATOR

FOREIGN = ("compile forward 0 3: clamp", "torch forward 0 3: clamp", "step forward 0 3: clamp")


@pytest.mark.longer_cases("rest")
@pytest.mark.parametrize("seeds", [range(5), range(5, 10)], ids=["first", "rest"])
def test_share(seeds: range) -> None:
    assert not failures(GENERATOR, seeds)


@pytest.mark.share(2)
@pytest.mark.parametrize("line", FOREIGN)
def test_operators_by_name_alone_are_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = lambda node: str(getattr(node.target, "__name__", node.target))  # noqa: E731
    monkeypatch.setattr(reader, "op_of", by_name)
    assert GENERATOR.answer(line)["status"] == "failed"
