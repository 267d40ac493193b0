"""PyTorch's layers of volumes: each a function of images (2, 4, 6, 6), of which it makes
(2, 2, 4, 6, 3); and a small network of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as fn

import relay_wgrad.torch as rt

Tensor = torch.Tensor


def _volume(y: Tensor) -> Tensor:
    return torch.cat([y.reshape(2, 1, 4, 6, 6), y.reshape(2, 1, 4, 6, 6).flip(2) * 2], 1)[..., ::2]


def _like(y: Tensor, *shape: int) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=y.dtype) + 1).reshape(shape)


def _own(y: Tensor) -> Tensor:
    """This package's convolutions and their gradients, of images and of volumes."""
    w, volume = _like(y, 6, 2, 3, 3), _volume(y)
    z = rt.convolution(y, w, _like(y, 6), 2, (1, 0, 2, 1), groups=2)
    cube = _like(y, 4, 1, 2, 3, 2)
    v = rt.conv3d(volume, cube, None, (1, 2, 1), groups=2)
    return (
        rt.convolution_backward_input(y.shape, w, z, 2, (1, 0, 2, 1), groups=2)
        * rt.convolution_backward_weight(y, w.shape, z, 2, (1, 0, 2, 1), groups=2).mean()
        + rt.convolution_transpose(z, w, _like(y, 4), 2, groups=2).mean()
        + rt.conv3d_backward_input(volume.shape, cube, v, (1, 2, 1), groups=2).mean()
        * rt.conv3d_backward_weight(volume, cube.shape, v, (1, 2, 1), groups=2).square().mean()
    )


VOLUMES: dict[str, Callable[[Tensor], Tensor]] = {
    "own": _own,
    "conv3d": lambda y: fn.conv3d(
        _volume(y), _like(y, 4, 1, 2, 3, 2), _like(y, 4), (1, 2, 1), (1, 0, 1), (2, 1, 1), 2
    ),
    "conv3d same": lambda y: fn.conv3d(_volume(y), _like(y, 3, 2, 1, 3, 3), padding="same"),
    "transposed 3-D": lambda y: fn.conv_transpose3d(
        _volume(y), _like(y, 2, 2, 3, 2, 2), _like(y, 4), (2, 1, 3), (1, 0, 0), (1, 0, 2), 2,
    ),
    "transposed 3-D, dilated": lambda y: fn.conv_transpose3d(
        _volume(y), _like(y, 2, 1, 2, 2, 2), output_padding=(1, 0, 2), dilation=(2, 1, 3)
    ),
    "batch norm 3-D": lambda y: fn.batch_norm(_volume(y), None, None, training=True),
    "average pool 3-D": lambda y: (
        fn.avg_pool3d(_volume(y), (3, 2, 2), (2, 3, 1), (1, 1, 1), ceil_mode=True)
        + fn.avg_pool3d(
            _volume(y), (3, 2, 2), (2, 3, 1), (1, 1, 1), ceil_mode=True, count_include_pad=False
        )
    ),
    "adaptive pool 3-D": lambda y: (
        fn.adaptive_avg_pool3d(_volume(y), (2, 3, 1)) + fn.adaptive_avg_pool3d(_volume(y), 1)
        + fn.adaptive_avg_pool3d(_volume(y), (3, 4, 2)).sum()
    ),
    "max pool 3-D": lambda y: (
        fn.max_pool3d(_volume(y).round(), (3, 2, 2), 2, 1, ceil_mode=True)
        + fn.max_pool3d(_volume(y), (3, 2, 2), 2, 1, ceil_mode=True, return_indices=True)[0]
    ),
    "pad 3-D": lambda y: (
        torch.ops.aten.replication_pad3d(_volume(y), (1, 1, 0, 2, 1, 0))
        + torch.ops.aten.reflection_pad3d(_volume(y), (0, 2, 2, 0, 0, 1))
    ),
}  # fmt: skip


class Small(nn.Module):
    """An encoder, a decoder with a skip, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm3d(4)
        self.down = nn.Conv3d(4, 6, (3, 2, 2), stride=2, padding=(1, 0, 0), groups=2)
        self.up = nn.ConvTranspose3d(6, 4, 2, stride=2)
        self.pool = nn.MaxPool3d((1, 2, 2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = x + self.up(torch.relu(self.down(x)))
        return self.head(self.pool(x).mean((2, 3, 4)))
