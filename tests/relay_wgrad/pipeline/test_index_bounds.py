"""Indices that data give and that the axis lacks: NaN, and nothing outside is read or written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import relay_wgrad.torch as rt

pytestmark = pytest.mark.usefixtures("registered")
ROWS = 10
INDICES = [-(2**40), -ROWS - 1, ROWS, 2**40]


def wrong(function: Any, index: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A compiled function's result and gradient with this index in the place of the second."""
    table = torch.randn(ROWS, 4, requires_grad=True)
    compiled = torch.compile(function, backend="relay_wgrad")
    assert torch.isfinite(compiled(table, index)).all()
    bad = index.clone()
    bad.view(-1)[1] = place
    made = compiled(table, bad)
    (gradient,) = torch.autograd.grad(made.sum(), table)
    return made, gradient


FUNCTIONS: dict[str, Any] = {
    "embedding": lambda x, i: nn.functional.embedding(i, x),
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], torch.ones(4, 1)),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(4, 4)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_index_is_nan(name: str) -> None:
    index = torch.tensor([3, 1, 9, 0])
    for place in INDICES:
        made, gradient = wrong(FUNCTIONS[name], index, place)
        assert torch.isnan(made).any(), place
        assert gradient.shape == (ROWS, 4)
        if made.shape[0] == 4:  # of reads the others are what they were
            assert torch.isfinite(made[[0, 2, 3]]).all()


def test_negative_rows_of_an_embedding() -> None:
    """PyTorch counts none from the end there."""
    made, _ = wrong(FUNCTIONS["embedding"], torch.tensor([3, 1, 9, 0]), -1)
    assert torch.isnan(made[1]).all()
    assert torch.isfinite(made[[0, 2, 3]]).all()


def test_a_step() -> None:
    layers = nn.Sequential(nn.Embedding(ROWS, 4), nn.Linear(4, 2))
    index = torch.tensor([[3, 1], [9, 0]])
    step = rt.TrainingStep(layers, index)
    torch.testing.assert_close(step(index), layers(index))
    for place in (*INDICES, -1):
        made = step(torch.tensor([[3, place], [9, 0]]))
        assert torch.isnan(made[0, 1]).all()
        made.sum().backward()
