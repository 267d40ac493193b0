"""The operators that `relay_wgrad.torch` gives PyTorch, which are those of Relax: its layers and
functions, and their gradients, in graphs that are imported."""

from __future__ import annotations

from typing import Any

from ... import ranks
from .. import layers
from ..context import Context
from ..conv_gradients import ConvGradients
from .call import Builder, Call, check_elements


def _geometry(call: Call, at: int) -> tuple[list[int], list[int], list[int], int]:
    """(strides, padding, dilation, groups) from this place on; what follows is how cuDNN computes.

    Padding is before each axis, then after each, as in Relax.
    """
    strides, padding, dilation, groups, *_ = call.args[at:]
    return [*map(int, strides)], [*map(int, padding)], [*map(int, dilation)], int(groups)


def _fprop(ctx: Context, call: Call) -> Any:
    """(data, weight, bias, geometry)."""
    data, weight, bias = call.args[:3]
    check_elements(input=data, weight=weight)
    strides, padding, dilation, groups = _geometry(call, 3)
    return layers.conv(ctx, data, weight, bias, strides, padding, dilation, groups)


def _dgrad(ctx: Context, call: Call) -> Any:
    """(grad, weight, bias, size, geometry): a bias is a transposed convolution's."""
    grad, weight, bias, _ = call.args[:4]
    check_elements(grad=grad, weight=weight)
    gradients = ConvGradients(ctx, *_geometry(call, 4))
    return layers.biased(ctx, gradients.by_data(grad, weight, call.shape), bias)


def _wgrad(ctx: Context, call: Call) -> Any:
    """(grad, data, size, geometry)."""
    grad, data, _ = call.args[:3]
    check_elements(grad=grad, data=data)
    return ConvGradients(ctx, *_geometry(call, 3)).by_weight(grad, data, call.shape)


OWN: dict[str, Builder] = {
    f"relay_wgrad::conv{rank}d{name}.default": row
    for rank in ranks.OWN
    for name, row in (("", _fprop), ("_backward_data", _dgrad), ("_backward_weight", _wgrad))
}
"""Overload -> builder."""
