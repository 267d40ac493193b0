"""Calls of convolutions and pools of one dimension."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from .op_case import Case, by_torch, real


def cases() -> Iterator[Case]:
    """Strides, sides of padding, dilation, groups, channels last."""
    x, w = real(2, 4, 9), real(6, 2, 3)
    yield Case("nn.conv1d", (x, w), by_torch(lambda x, w: (
        F.conv1d(F.pad(x, (2, 1)), w, stride=2, dilation=2, groups=2))),
        {"strides": [2], "padding": [2, 1], "dilation": [2], "groups": 2})  # fmt: skip
    yield Case("nn.conv1d", (real(2, 9, 4), real(3, 4, 6)), by_torch(lambda x, w: (
        F.conv1d(x.mT, w.permute(2, 1, 0)).mT)),
        {"data_layout": "NWC", "kernel_layout": "WIO"})  # fmt: skip
    yield Case("nn.conv1d_transpose", (x, real(4, 3, 3)), by_torch(lambda x, w: (
        F.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1, groups=2))),
        {"strides": [2], "padding": [1], "output_padding": [1], "groups": 2,
         "channels": 6, "kernel_size": [3]})  # fmt: skip
    pool = {"pool_size": [3], "strides": [2]}
    yield Case("nn.max_pool1d", (x,), by_torch(lambda x: F.max_pool1d(x, 3, 2, 1)),
               pool | {"padding": [1]})  # fmt: skip
    yield Case("nn.avg_pool1d", (x,), by_torch(lambda x: F.avg_pool1d(x.mT, 3, 2).mT),
               pool | {"layout": "NWC"})  # fmt: skip
    yield Case("nn.avg_pool1d", (x,), by_torch(lambda x: F.avg_pool1d(x, 3, 2, 1)),
               pool | {"padding": [1, 1], "count_include_pad": True})  # fmt: skip
    for size in (3, 4):
        yield Case("nn.adaptive_max_pool1d", (x,), by_torch(lambda x, n=size: (
            F.adaptive_max_pool1d(x, n))), {"output_size": [size]})  # fmt: skip
        yield Case("nn.adaptive_avg_pool1d", (x,), by_torch(lambda x, n=size: (
            F.adaptive_avg_pool1d(x, n))), {"output_size": [size]})  # fmt: skip
    yield Case("nn.adaptive_avg_pool1d", (x,), by_torch(torch.clone))
