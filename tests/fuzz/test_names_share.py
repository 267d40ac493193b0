"""A share of the generator `names`, and a fault that it finds."""

from __future__ import annotations

import pytest

from relay_wgrad.frontend.torch import reader

from .harness import failures
from .names import GENERATOR

FOREIGN = ("compile forward 0 3: clamp", "torch forward 0 3: clamp", "step forward 0 3: clamp")


def test_share() -> None:
    assert not failures(GENERATOR, range(10))


@pytest.mark.parametrize("line", FOREIGN)
def test_operators_by_name_alone_are_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = lambda node: str(getattr(node.target, "__name__", node.target))  # noqa: E731
    monkeypatch.setattr(reader, "op_of", by_name)
    assert GENERATOR.answer(line)["status"] == "failed"
