"""Networks with gates, and weight gradients of one pixel as NumPy has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from byoc_cudnn.point_weights import PointWeightsCall


class Gated(nn.Module):
    """Convolutions with gates of squeeze and excitation, with and without biases."""

    def __init__(self, widths: Sequence[int] = (8, 24, 16, 72, 8), inner: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        pairs = zip((3, *widths), widths, strict=False)
        self.convolutions = nn.ModuleList(nn.Conv2d(c, k, 3, padding=1) for c, k in pairs)
        self.squeezes = nn.ModuleList(nn.Conv2d(c, inner, 1) for c in widths)
        self.excites = nn.ModuleList(nn.Conv2d(inner, c, 1, bias=c % 16 > 0) for c in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, squeeze, excite in zip(
            self.convolutions, self.squeezes, self.excites, strict=True
        ):
            x = torch.relu(convolution(x))
            x = x * torch.sigmoid(excite(torch.relu(squeeze(x.mean((2, 3), keepdim=True)))))
        return x.mean((2, 3))


def values(call: PointWeightsCall, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a call, in float64."""
    count, dw, db = len(call.products), list[Any](), list[Any]()
    for product, dy, x in zip(call.products, arrays[:count], arrays[count:], strict=True):
        rows = dy.reshape(product.n, product.k).astype("float64")
        dw.append(rows.T @ x.reshape(product.n, product.c).astype("float64"))
        if product.biased:
            db.append(rows.sum(0))
    return [*dw, *db]
