"""What compiled code goes by of tensors: differences are seen, by PyTorch's guards or by loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from relay_wgrad.torch import tensor_facts
from relay_wgrad.torch.tensor_facts import TensorFacts

CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "elsewhere": lambda x: setattr(x, "data", x.data.clone()),
    "strides": lambda x: setattr(x, "data", x.data.t()),
    "shape": lambda x: setattr(x, "data", x.data.reshape(2, 8)),
    "negated": lambda x: setattr(x, "data", torch._neg_view(x.data)),
    "no gradient": lambda x: x.requires_grad_(not x.requires_grad),
    "in place": lambda x: x.data.zero_(),
}


@pytest.fixture(params=[True, False], ids=["guards", "loops"])
def tensors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """A parameter of four by four among others."""
    if not request.param:
        monkeypatch.setattr(tensor_facts, "guards_of", lambda tensors: None)
    square = torch.nn.Parameter(torch.randn(4, 4))
    return [torch.nn.Parameter(torch.randn(4, 4, 3, 3)), square, torch.zeros(4), torch.tensor(0)]


@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_changes(change: str, place: int, tensors: list[torch.Tensor]) -> None:
    if place == 2:  # a buffer, of the parameter's shape
        tensors[2] = torch.zeros(4, 4)
    facts = TensorFacts(tensors)
    assert facts.hold()
    CHANGES[change](tensors[place])
    assert facts.hold() is (change == "in place")
    assert TensorFacts(tensors).hold()


def test_modes_are_no_difference(tensors: list[torch.Tensor]) -> None:
    facts = TensorFacts(tensors)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            assert facts.hold()
        with torch.no_grad():
            assert facts.hold()
        assert facts.hold()
    tensors[1].requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert not facts.hold()


def test_of_none() -> None:
    assert TensorFacts([]).hold()
