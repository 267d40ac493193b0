"""Convolutions and pools whose builders say more than their records do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ast import Call, Expr
from ..make import call
from .made import written_out
from .made.nn import (
    adaptive_avg_pool1d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool3d,
)

Size = int | Sequence[int]


def conv2d_backward_weight(
    grad: Expr,
    data: Expr,
    strides: Size = (1, 1),
    padding: Size = (0, 0),
    dilation: Size = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Size | None = None,
    grad_layout: str = "NCHW",
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_dtype: str = "",
) -> Call:
    """The weight gradient of a convolution with the same attributes.

    The gradient of the result (N, K, P, Q) and the data (N, C, H, W) to (K, C/groups, R, S).
    Relay keeps the three layouts in conv2d's fields: the call's `data_layout` is `grad_layout`, its
    `kernel_layout` is `data_layout`, its `out_layout` is `kernel_layout`.
    """
    return _backward_weight(
        2, grad, data, strides, padding, dilation, kernel_size, groups=groups, channels=channels,
        data_layout=grad_layout, kernel_layout=data_layout, out_layout=kernel_layout,
        out_dtype=out_dtype,
    )  # fmt: skip


def conv3d_backward_weight(
    grad: Expr,
    data: Expr,
    strides: Size = (1, 1, 1),
    padding: Size = (0, 0, 0),
    dilation: Size = (1, 1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Size | None = None,
    grad_layout: str = "NCDHW",
    data_layout: str = "NCDHW",
    kernel_layout: str = "OIDHW",
    out_dtype: str = "",
) -> Call:
    """The weight gradient of `conv3d`, with its layouts in the fields of `conv2d_backward_weight`.

    Relay has no such operator.
    """
    return _backward_weight(
        3, grad, data, strides, padding, dilation, kernel_size, groups=groups, channels=channels,
        data_layout=grad_layout, kernel_layout=data_layout, out_layout=kernel_layout,
        out_dtype=out_dtype,
    )  # fmt: skip


def _backward_weight(
    rank: int, grad: Expr, data: Expr, strides: Size, padding: Size, dilation: Size,
    kernel_size: Size | None, **attrs: Any,
) -> Call:  # fmt: skip
    name = f"nn.conv{rank}d_backward_weight"
    window = {"strides": strides, "padding": padding, "dilation": dilation,
              "kernel_size": kernel_size}  # fmt: skip
    whole = {key: written_out(name, key, value, rank) for key, value in window.items()}
    return call(name, grad, data, **whole, **attrs)


def deformable_conv2d(
    data: Expr,
    offset: Expr,
    weight: Expr,
    strides: Size = (1, 1),
    padding: Size = (0, 0),
    dilation: Size = (1, 1),
    deformable_groups: int = 1,
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Size | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Call:
    """A convolution that reads beside its window's places by `offset` (N, 2 D R S, P, Q): y, x."""
    return call(
        "nn.deformable_conv2d", data, offset, weight, strides=strides,
        padding=written_out("nn.deformable_conv2d", "padding", padding, 2), dilation=dilation,
        deformable_groups=deformable_groups, groups=groups, channels=channels,
        kernel_size=kernel_size, data_layout=data_layout, kernel_layout=kernel_layout,
        out_layout=out_layout, out_dtype=out_dtype,
    )  # fmt: skip


def max_pool2d_grad(
    out_grad: Expr,
    data: Expr,
    pool_size: Size = (1, 1),
    strides: Size = (1, 1),
    padding: Size = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Call:
    """The gradient of `max_pool2d` by its data."""
    return call(
        "nn.max_pool2d_grad",
        out_grad,
        data,
        pool_size=pool_size,
        strides=strides,
        dilation=(),  # as Relay's builder leaves it
        padding=padding,
        layout=layout,
        out_layout=out_layout,
        ceil_mode=ceil_mode,
    )


def avg_pool2d_grad(
    out_grad: Expr,
    data: Expr,
    pool_size: Size = (1, 1),
    strides: Size = (1, 1),
    padding: Size = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:
    """The gradient of `avg_pool2d` by its data."""
    return call(
        "nn.avg_pool2d_grad",
        out_grad,
        data,
        pool_size=pool_size,
        strides=strides,
        dilation=(),  # as Relay's builder leaves it
        padding=padding,
        layout=layout,
        out_layout=out_layout,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )


def global_max_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """The maximum along W, which becomes 1."""
    return adaptive_max_pool1d(data, 1, layout, out_layout)


def global_avg_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """The mean along W, which becomes 1."""
    return adaptive_avg_pool1d(data, 1, layout, out_layout)


def global_max_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """The maximum of each channel of a volume."""
    return adaptive_max_pool3d(data, 1, layout, out_layout)


def global_avg_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """The mean of each channel of a volume."""
    return adaptive_avg_pool3d(data, 1, layout, out_layout)
