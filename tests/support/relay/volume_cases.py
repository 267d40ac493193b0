"""Calls of convolutions, pools and upsampling of three dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .op_case import Case, by_torch, real, whole


def _wgrad(grad: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    return torch.nn.grad.conv3d_weight(data, (4, 1, 1, 2, 3), grad, 2, 1, 1, 2)


def cases() -> Iterator[Case]:
    """Strides, padding of each side, dilation, groups, layouts, windows over the edge."""
    x = real(2, 4, 5, 4, 6)
    yield Case("nn.conv3d", (x, real(6, 2, 3, 2, 3)), by_torch(lambda x, w: (
        F.conv3d(F.pad(x, (2, 1, 0, 1, 1, 0)), w, None, (2, 1, 2), 0, (1, 2, 1), 2))),
        {"strides": [2, 1, 2], "padding": [1, 0, 2, 0, 1, 1], "dilation": [1, 2, 1],
         "groups": 2, "channels": 6, "kernel_size": [3, 2, 3]})  # fmt: skip
    yield Case("nn.conv3d", (real(1, 3, 4, 5, 2), real(3, 1, 2, 2, 3)), by_torch(lambda x, w: (
        F.conv3d(x.permute(0, 4, 1, 2, 3), w.permute(4, 3, 0, 1, 2)).permute(0, 2, 3, 4, 1))),
        {"data_layout": "NDHWC", "kernel_layout": "DHWIO"})  # fmt: skip
    yield Case("nn.conv3d_transpose", (real(1, 4, 2, 3, 3), real(4, 3, 2, 3, 2)), by_torch(
        lambda x, w: F.conv_transpose3d(x, w, None, (2, 1, 3), (1, 1, 0), (1, 0, 2), 2)),
        {"strides": [2, 1, 3], "padding": [1, 1, 0], "output_padding": [1, 0, 2], "groups": 2,
         "channels": 6})  # fmt: skip
    yield Case("nn.conv3d_backward_weight", (real(2, 4, 4, 3, 3), real(2, 2, 6, 5, 6)),
               by_torch(_wgrad),
               {"strides": [2], "padding": [1], "groups": 2, "kernel_size": [1, 2, 3],
                "kernel_layout": "NCDHW", "out_layout": "OIDHW"})  # fmt: skip
    window: dict[str, Any] = {"pool_size": [2, 3, 2], "strides": [2, 2, 1]}
    yield Case("nn.max_pool3d", (x,), by_torch(lambda x: (
        F.max_pool3d(x, (2, 3, 2), (2, 2, 1), (1, 1, 0)))),
        window | {"padding": [1, 1, 0]})  # fmt: skip
    yield Case("nn.max_pool3d", (x,), by_torch(lambda x: (
        F.max_pool3d(x.permute(0, 4, 1, 2, 3), 2, 1, 0, 2).permute(0, 2, 3, 4, 1))),
        {"pool_size": [2], "dilation": [2], "layout": "NDHWC"})  # fmt: skip
    for count in (False, True):
        yield Case("nn.avg_pool3d", (x,), by_torch(lambda x, c=count: (
            F.avg_pool3d(x, (2, 3, 2), (2, 2, 1), (1, 1, 0), count_include_pad=c))),
            window | {"padding": [1, 1, 0], "count_include_pad": count})  # fmt: skip
    yield Case("nn.avg_pool3d", (whole(1, 2, 4, 4, 4),), by_torch(lambda x: (
        F.avg_pool3d(x.double(), 2).int())), {"pool_size": [2], "strides": [2]})  # fmt: skip
    yield Case("nn.avg_pool2d", (whole(1, 8, 4, 4, low=-128, high=128, dtype="int8"),), by_torch(
        lambda x: F.avg_pool2d(x.double(), 2).char()),
        {"pool_size": [2], "strides": [2]})  # fmt: skip
    yield Case("nn.adaptive_avg_pool2d", (whole(1, 3, 6, 4),), by_torch(lambda x: (
        F.adaptive_avg_pool2d(x.double(), (2, 1)).int())), {"output_size": [2, 1]})  # fmt: skip
    for size in ((5, 2, 3), (2, 3, 6), (1, 1, 1)):
        yield Case("nn.adaptive_avg_pool3d", (x,), by_torch(lambda x, n=size: (
            F.adaptive_avg_pool3d(x, n))), {"output_size": size})  # fmt: skip
    yield Case("nn.adaptive_max_pool3d", (x,), by_torch(lambda x: (
        F.adaptive_max_pool3d(x, (1, 2, 3)))), {"output_size": [1, 2, 3]})  # fmt: skip
    yield Case("nn.upsampling3d", (x,), by_torch(lambda x: (
        F.interpolate(x, (10, 8, 9), mode="trilinear", align_corners=True))),
        {"scale_d": 2.0, "scale_h": 2.0, "scale_w": 1.5, "method": "trilinear",
         "coordinate_transformation_mode": "align_corners"})  # fmt: skip
    yield Case("nn.upsampling3d", (x,), by_torch(lambda x: F.interpolate(x, (5, 8, 12))),
               {"scale_d": 1.0, "scale_h": 2.0, "scale_w": 2.0,
                "coordinate_transformation_mode": "asymmetric"})  # fmt: skip
