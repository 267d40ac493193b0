"""A step of volumes: pools, resizes and transposed convolutions, with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from relay_wgrad.frontend import from_torch
from relay_wgrad.training.step import converted, step_module

SHAPE = (2, 5, 7, 6, 9)


class Resampled(nn.Module):
    """Windows that touch and that overlap, by nearest and by line, twice the size by a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up = nn.Conv3d(5, 6, 1), nn.ConvTranspose3d(6, 4, 2, 2)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        up = F.leaky_relu(self.up(x), 0.01)
        halves = F.max_pool3d(up, 2), F.max_pool3d(up, 3, 2, 1), F.avg_pool3d(up, 2)
        doubled = (
            F.interpolate(x, scale_factor=2), F.interpolate(x, scale_factor=2, mode="trilinear")
        )  # fmt: skip
        means = [(y * y).mean() for y in (up, *halves, *doubled)]
        return torch.stack(means).sum()


def step() -> tuple[Any, list[Any]]:
    """(a module whose "main_adjoint" is the step, channels last, its arguments)."""
    torch.manual_seed(0)
    x = torch.randn(SHAPE)
    graph = from_torch(Resampled(), (x,), loss="own")
    mod = converted(step_module(graph), "NHWC")
    values = {graph.inputs[0].name: x.numpy()}
    return mod, [np.asarray(a) for a in graph.arguments(values)]
