"""Pools of volumes, which are two of images: ties, remainders, and no change of layout for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from relay_wgrad.frontend import from_torch
from relay_wgrad.torch import compiler
from relay_wgrad.torch.reports import compiled_graphs
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import layout_changes

pytestmark = pytest.mark.usefixtures("registered")

POOLS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "tiled": ((2, 3, 4, 6, 5), lambda x: F.max_pool3d(x, 2)),
    "rest along H": ((2, 3, 4, 5, 6), lambda x: F.max_pool3d(x, 2)),
    "rounded up": ((2, 3, 5, 5, 5), lambda x: F.max_pool3d(x, 2, ceil_mode=True)),
    "one window": ((2, 3, 2, 2, 2), lambda x: F.max_pool3d(x, 2)),
    "overlapping": ((2, 3, 5, 7, 6), lambda x: F.max_pool3d(x, 3, 2, 1)),
    "means": ((2, 3, 4, 6, 5), lambda x: F.avg_pool3d(x, (1, 3, 2))),
    "means with a rest": ((2, 3, 4, 7, 5), lambda x: F.avg_pool3d(x, 2)),
}


@pytest.mark.parametrize("name", POOLS)
def test_numbers(name: str) -> None:
    """Of whole numbers, so that maxima are there several times: the first one's is the gradient."""
    shape, pool = POOLS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    a = torch.randint(-3, 4, shape).double().requires_grad_()
    b = a.detach().clone().requires_grad_()
    want, got = pool(a), torch.compile(pool, backend=compiler.backend, dynamic=False)(b)
    dy = torch.randn_like(want)
    (wanted,), (made,) = (torch.autograd.grad(y, x, dy) for y, x in ((want, a), (got, b)))
    assert not [graph.reason for graph in compiled_graphs()[-2:] if graph.reason]
    assert torch.allclose(got, want, rtol=1e-14)
    assert torch.allclose(made, wanted, rtol=1e-14, atol=1e-15)


class Between(nn.Module):
    """A pool between two convolutions."""

    def __init__(self, pool: Callable[[Any], Any]) -> None:
        super().__init__()
        self.pool, self.a, self.b = pool, nn.Conv3d(4, 8, 3), nn.Conv3d(8, 8, 3)

    def forward(self, x: Any) -> Any:
        return self.b(self.pool(self.a(x))).square().mean()


@pytest.mark.parametrize("pool", [F.max_pool3d, F.avg_pool3d])
def test_channels_stay_last(pool: Any) -> None:
    """x, both weights and both weights' gradients change layout, and nothing between them."""
    graph = from_torch(Between(lambda y: pool(y, 2)), (torch.randn(2, 4, 10, 12, 10),), loss="own")
    changes = layout_changes(converted(step_module(graph), "NHWC")[ADJOINT])
    assert len(changes) == 5, changes
