"""Convolutions and pools: builders that spell sizes out as Relay's did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ast import Call, Expr
from ..make import call

Size = int | Sequence[int]


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else value


def _padding(op: str, value: Any) -> tuple[int, ...]:
    """(top, left, bottom, right): Relay's text always has four."""
    values = (value,) if isinstance(value, int) else value
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{op}: padding must be an integer or a list of integers, got {value!r}")
    if len(values) not in (1, 2, 4):
        raise ValueError(f"{op}: padding must be 1, 2 or 4 integers, got {value!r}")
    return tuple(values) * (4 // len(values))


def conv2d(
    data: Expr,
    weight: Expr,
    strides: Size = (1, 1),
    padding: Size = (0, 0),
    dilation: Size = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Size | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Call:
    """A convolution: (N, C, H, W) and (K, C/groups, R, S) to (N, K, P, Q), or other layouts.

    `padding` is one integer, (vertical, horizontal) or (top, left, bottom, right); `channels` is K
    and `kernel_size` (R, S), which only repeat the weight's shape; `out_layout` is by default
    `data_layout`, `out_dtype` that of `data`.
    """
    return call(
        "nn.conv2d",
        data,
        weight,
        strides=_pair(strides),
        padding=_padding("nn.conv2d", padding),
        dilation=_pair(dilation),
        groups=groups,
        channels=channels,
        kernel_size=_pair(kernel_size),
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_layout=out_layout,
        out_dtype=out_dtype,
    )


def conv2d_transpose(
    data: Expr,
    weight: Expr,
    strides: Size = (1, 1),
    padding: Size = (0, 0),
    dilation: Size = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Size | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "",
    output_padding: Size = (0, 0),
    out_dtype: str = "",
) -> Call:
    """A transposed convolution, the data gradient of a convolution with the same attributes.

    (N, I, H, W) and (I, O/groups, R, S) to (N, O, P, Q); `output_padding` adds to P and Q at the
    bottom and the right.
    """
    return call(
        "nn.conv2d_transpose",
        data,
        weight,
        channels=channels,
        kernel_size=_pair(kernel_size),
        strides=_pair(strides),
        output_padding=_pair(output_padding),
        padding=_padding("nn.conv2d_transpose", padding),
        dilation=_pair(dilation),
        groups=groups,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_layout=out_layout,
        out_dtype=out_dtype,
    )


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
    return call(
        "nn.conv2d_backward_weight",
        grad,
        data,
        strides=_pair(strides),
        padding=_padding("nn.conv2d_backward_weight", padding),
        dilation=_pair(dilation),
        groups=groups,
        channels=channels,
        kernel_size=_pair(kernel_size),
        data_layout=grad_layout,
        kernel_layout=data_layout,
        out_layout=kernel_layout,
        out_dtype=out_dtype,
    )


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
        padding=_padding("nn.deformable_conv2d", padding), dilation=dilation,
        deformable_groups=deformable_groups, groups=groups, channels=channels,
        kernel_size=kernel_size, data_layout=data_layout, kernel_layout=kernel_layout,
        out_layout=out_layout, out_dtype=out_dtype,
    )  # fmt: skip


def max_pool2d(
    data: Expr,
    pool_size: Size = (1, 1),
    strides: Size = (1, 1),
    dilation: Size = (1, 1),
    padding: Size = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Call:
    """The maximum of each window."""
    return call(
        "nn.max_pool2d",
        data,
        pool_size=_pair(pool_size),
        strides=_pair(strides),
        dilation=_pair(dilation),
        padding=_padding("nn.max_pool2d", padding),
        layout=layout,
        out_layout=out_layout,
        ceil_mode=ceil_mode,
    )


def avg_pool2d(
    data: Expr,
    pool_size: Size = (1, 1),
    strides: Size = (1, 1),
    dilation: Size = (1, 1),
    padding: Size = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:
    """The mean of each window; `count_include_pad` counts the padding's zeros."""
    return call(
        "nn.avg_pool2d",
        data,
        pool_size=_pair(pool_size),
        strides=_pair(strides),
        dilation=_pair(dilation),
        padding=_padding("nn.avg_pool2d", padding),
        layout=layout,
        out_layout=out_layout,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )


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


def adaptive_avg_pool2d(
    data: Expr, output_size: Size | None = None, layout: str = "NCHW", out_layout: str = ""
) -> Call:
    """The means of windows such that the result has this height and width, by default data's."""
    return _adaptive("nn.adaptive_avg_pool2d", data, output_size, layout, out_layout)


def adaptive_max_pool2d(
    data: Expr, output_size: Size | None = None, layout: str = "NCHW", out_layout: str = ""
) -> Call:
    """The maxima of windows such that the result has this height and width, by default data's."""
    return _adaptive("nn.adaptive_max_pool2d", data, output_size, layout, out_layout)


def _adaptive(name: str, data: Expr, size: Size | None, layout: str, out_layout: str) -> Call:
    output_size = () if size is None else size
    return call(name, data, output_size=output_size, layout=layout, out_layout=out_layout)
