"""Builders of convolutions and pools of one dimension; `padding` is (left, right) in the text."""

from __future__ import annotations

from typing import Any

from ..ast import Call, Expr
from ..make import call
from .conv import Size


def _one(value: Any) -> Any:
    return (value,) if isinstance(value, int) else value


def _sides(op: str, value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    if len(values) not in (1, 2):
        raise ValueError(f"{op}: padding must be 1 or 2 integers, got {value!r}")
    return (values[0], values[-1])


def conv1d(
    data: Expr,
    weight: Expr,
    strides: Size = 1,
    padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Size | None = None,
    data_layout: str = "NCW",
    kernel_layout: str = "OIW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Call:
    """A convolution along W: (N, C, W) and (K, C/groups, S) to (N, K, Q), or other layouts."""
    return call(
        "nn.conv1d", data, weight, strides=_one(strides), padding=_sides("nn.conv1d", padding),
        dilation=_one(dilation), groups=groups, channels=channels, kernel_size=_one(kernel_size),
        data_layout=data_layout, kernel_layout=kernel_layout, out_layout=out_layout,
        out_dtype=out_dtype,
    )  # fmt: skip


def conv1d_transpose(
    data: Expr,
    weight: Expr,
    strides: Size = (1,),
    padding: Size = (0,),
    dilation: Size = (1,),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Size | None = None,
    data_layout: str = "NCW",
    kernel_layout: str = "IOW",
    out_layout: str = "",
    output_padding: Size = (0,),
    out_dtype: str = "",
) -> Call:
    """A transposed convolution along W: (N, I, W) and (I, O/groups, S) to (N, O, Q)."""
    return call(
        "nn.conv1d_transpose", data, weight, channels=channels, kernel_size=_one(kernel_size),
        strides=_one(strides), output_padding=_one(output_padding),
        padding=_sides("nn.conv1d_transpose", padding), dilation=_one(dilation), groups=groups,
        data_layout=data_layout, kernel_layout=kernel_layout, out_layout=out_layout,
        out_dtype=out_dtype,
    )  # fmt: skip


def max_pool1d(
    data: Expr,
    pool_size: Size = (1,),
    strides: Size = (1,),
    dilation: Size = (1,),
    padding: Size = (0,),
    layout: str = "NCW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Call:
    """The maximum of each window along W."""
    return call(
        "nn.max_pool1d", data, pool_size=_one(pool_size), strides=_one(strides),
        dilation=_one(dilation), padding=_sides("nn.max_pool1d", padding), layout=layout,
        out_layout=out_layout, ceil_mode=ceil_mode,
    )  # fmt: skip


def avg_pool1d(
    data: Expr,
    pool_size: Size = (1,),
    strides: Size = (1,),
    dilation: Size = (1,),
    padding: Size = (0,),
    layout: str = "NCW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:
    """The mean of each window along W; `count_include_pad` counts the padding's zeros."""
    return call(
        "nn.avg_pool1d", data, pool_size=_one(pool_size), strides=_one(strides),
        dilation=_one(dilation), padding=_sides("nn.avg_pool1d", padding), layout=layout,
        out_layout=out_layout, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
    )  # fmt: skip


def adaptive_max_pool1d(
    data: Expr, output_size: Size | None = None, layout: str = "NCW", out_layout: str = ""
) -> Call:
    """The maxima of windows such that the result has this width, by default data's."""
    size = () if output_size is None else _one(output_size)
    return call(
        "nn.adaptive_max_pool1d", data, output_size=size, layout=layout, out_layout=out_layout
    )


def adaptive_avg_pool1d(
    data: Expr, output_size: Size | None = None, layout: str = "NCW", out_layout: str = ""
) -> Call:
    """The means of windows such that the result has this width, by default data's."""
    size = () if output_size is None else _one(output_size)
    return call(
        "nn.adaptive_avg_pool1d", data, output_size=size, layout=layout, out_layout=out_layout
    )


def global_max_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """The maximum along W, which becomes 1."""
    return adaptive_max_pool1d(data, 1, layout, out_layout)


def global_avg_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """The mean along W, which becomes 1."""
    return adaptive_avg_pool1d(data, 1, layout, out_layout)
