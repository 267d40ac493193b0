"""Builders of convolutions, pools and upsampling of volumes (N, C, D, H, W).

`padding` is (front, top, left, back, bottom, right) in the text.
"""

from __future__ import annotations

from typing import Any

from ..ast import Call, Expr
from ..make import call
from .conv import Size


def _three(value: Any) -> Any:
    return (value,) * 3 if type(value) is int else value


def _padding(op: str, value: Any) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    if len(values) not in (1, 3, 6):
        raise ValueError(f"{op}: padding must be 1, 3 or 6 integers, got {value!r}")
    return values * (6 // len(values))


def conv3d(
    data: Expr,
    weight: Expr,
    strides: Size = (1, 1, 1),
    padding: Size = (0, 0, 0),
    dilation: Size = (1, 1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Size | None = None,
    data_layout: str = "NCDHW",
    kernel_layout: str = "OIDHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Call:
    """A convolution of volumes: (N, C, D, H, W) and (K, C/groups, T, R, S) to (N, K, Z, P, Q)."""
    return call(
        "nn.conv3d", data, weight, strides=_three(strides), padding=_padding("nn.conv3d", padding),
        dilation=_three(dilation), groups=groups, channels=channels,
        kernel_size=_three(kernel_size), data_layout=data_layout, kernel_layout=kernel_layout,
        out_layout=out_layout, out_dtype=out_dtype,
    )  # fmt: skip


def conv3d_transpose(
    data: Expr,
    weight: Expr,
    strides: Size = (1, 1, 1),
    padding: Size = (0, 0, 0),
    dilation: Size = (1, 1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Size | None = None,
    data_layout: str = "NCDHW",
    kernel_layout: str = "IODHW",
    out_layout: str = "",
    output_padding: Size = (0, 0, 0),
    out_dtype: str = "",
) -> Call:
    """A transposed convolution of volumes: (N, I, D, H, W), (I, O/groups, T, R, S) to (N, O, …)."""
    return call(
        "nn.conv3d_transpose", data, weight, channels=channels, kernel_size=_three(kernel_size),
        strides=_three(strides), output_padding=_three(output_padding),
        padding=_padding("nn.conv3d_transpose", padding), dilation=_three(dilation), groups=groups,
        data_layout=data_layout, kernel_layout=kernel_layout, out_layout=out_layout,
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
    return call(
        "nn.conv3d_backward_weight", grad, data, strides=_three(strides),
        padding=_padding("nn.conv3d_backward_weight", padding), dilation=_three(dilation),
        groups=groups, channels=channels, kernel_size=_three(kernel_size), data_layout=grad_layout,
        kernel_layout=data_layout, out_layout=kernel_layout, out_dtype=out_dtype,
    )  # fmt: skip


def max_pool3d(
    data: Expr,
    pool_size: Size = (1, 1, 1),
    strides: Size = (1, 1, 1),
    dilation: Size = (1, 1, 1),
    padding: Size = (0, 0, 0),
    layout: str = "NCDHW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Call:
    """The maximum of each window of a volume."""
    return call(
        "nn.max_pool3d", data, pool_size=_three(pool_size), strides=_three(strides),
        dilation=_three(dilation), padding=_padding("nn.max_pool3d", padding), layout=layout,
        out_layout=out_layout, ceil_mode=ceil_mode,
    )  # fmt: skip


def avg_pool3d(
    data: Expr,
    pool_size: Size = (1, 1, 1),
    strides: Size = (1, 1, 1),
    dilation: Size = (1, 1, 1),
    padding: Size = (0, 0, 0),
    layout: str = "NCDHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:
    """The mean of each window of a volume; `count_include_pad` counts the padding's zeros."""
    return call(
        "nn.avg_pool3d", data, pool_size=_three(pool_size), strides=_three(strides),
        dilation=_three(dilation), padding=_padding("nn.avg_pool3d", padding), layout=layout,
        out_layout=out_layout, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
    )  # fmt: skip


def _adaptive(name: str, data: Expr, size: Size | None, layout: str, out_layout: str) -> Call:
    size = () if size is None else _three(size)
    return call(name, data, output_size=size, layout=layout, out_layout=out_layout)


def adaptive_max_pool3d(
    data: Expr, output_size: Size | None = None, layout: str = "NCDHW", out_layout: str = ""
) -> Call:
    """The maxima of windows such that the result has these sizes, by default data's."""
    return _adaptive("nn.adaptive_max_pool3d", data, output_size, layout, out_layout)


def adaptive_avg_pool3d(
    data: Expr, output_size: Size | None = None, layout: str = "NCDHW", out_layout: str = ""
) -> Call:
    """The means of windows such that the result has these sizes, by default data's."""
    return _adaptive("nn.adaptive_avg_pool3d", data, output_size, layout, out_layout)


def global_max_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """The maximum of each channel of a volume."""
    return adaptive_max_pool3d(data, 1, layout, out_layout)


def global_avg_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """The mean of each channel of a volume."""
    return adaptive_avg_pool3d(data, 1, layout, out_layout)
