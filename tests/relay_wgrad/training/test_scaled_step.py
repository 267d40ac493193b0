"""A step with a loss scale, one of whose gradients others are made of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from tvm import relax

from relay_wgrad.frontend import from_torch
from relay_wgrad.training.step import step_module

pytestmark = pytest.mark.usefixtures("registered")


class Shifted(nn.Module):
    """The gradient of `shift` is also what that of `root` is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3, bias=False)
        self.shift, self.root = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return self.linear(x) + (self.shift + self.root * self.root)


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_every_variable_is_defined(dtype: str | None) -> None:
    graph = from_torch(Shifted(), (torch.zeros(5, 4),))
    relax.analysis.well_formed(step_module(graph, dtype=dtype, scaled=True))
