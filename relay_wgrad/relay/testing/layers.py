"""Layers that make their own parameters, named after the layer."""

from __future__ import annotations

from typing import Any

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from ..variables import free_vars

_KERNELS = {"NCHW": "OIHW", "NHWC": "HWIO"}
_DEPTHWISE_KERNELS = {"NCHW": "OIHW", "NHWC": "HWOI"}


def batch_norm_infer(
    data: Expr,
    gamma: Expr | None = None,
    beta: Expr | None = None,
    moving_mean: Expr | None = None,
    moving_var: Expr | None = None,
    *,
    name: str,
    **kwargs: Any,
) -> Expr:
    """The normalized data alone; `kwargs` are those of `nn.batch_norm`."""
    given = {"gamma": gamma, "beta": beta, "moving_mean": moving_mean, "moving_var": moving_var}
    vectors: dict[str, Any] = {key: value or var(f"{name}_{key}") for key, value in given.items()}
    return nn.batch_norm(data, **vectors, **kwargs)[0]


def conv2d(data: Expr, weight: Expr | None = None, *, name: str, **kwargs: Any) -> Expr:
    """`nn.conv2d`, whose `kwargs` must have `channels` and `kernel_size`."""
    return nn.conv2d(data, weight or var(f"{name}_weight"), **kwargs)


def conv2d_transpose(data: Expr, weight: Expr | None = None, *, name: str, **kwargs: Any) -> Expr:
    """`nn.conv2d_transpose`, whose `kwargs` must have `channels` and `kernel_size`."""
    return nn.conv2d_transpose(data, weight or var(f"{name}_weight"), **kwargs)


def dense_add_bias(
    data: Expr,
    weight: Expr | None = None,
    bias: Expr | None = None,
    units: int | None = None,
    *,
    name: str,
    **kwargs: Any,
) -> Expr:
    """`nn.dense` and `nn.bias_add`."""
    out = nn.dense(data, weight or var(f"{name}_weight"), units, **kwargs)
    return nn.bias_add(out, bias or var(f"{name}_bias"), axis=-1)


def conv_kernel_layout(data_layout: str, is_depthwise: bool = False) -> str:
    """The weight's layout that goes with the data's.

    Raises ValueError for another than NCHW and NHWC.
    """
    layouts = _DEPTHWISE_KERNELS if is_depthwise else _KERNELS
    if data_layout not in layouts:
        raise ValueError(f"the data's layout must be NCHW or NHWC, got {data_layout!r}")
    return layouts[data_layout]


def closed(net: Expr) -> Function:
    """A function of the variables that an expression needs."""
    return Function(tuple(free_vars(net)), net)
