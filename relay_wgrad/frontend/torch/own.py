"""The operators that `relay_wgrad.torch` gives PyTorch, which are those of Relax: its layers and
functions, and their gradients, in graphs that are imported."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..context import Context, shape_of
from ..conv_gradients import ConvGradients
from .call import Builder, Call, check_elements

op = relax.op
_FPROPS = {2: op.nn.conv2d, 3: op.nn.conv3d}


def _geometry(call: Call, at: int) -> tuple[list[int], list[int], list[int], int]:
    """(strides, padding, dilation, groups) from this place on; what follows is how cuDNN computes.

    Padding is before each axis, then after each, as in Relax.
    """
    strides, padding, dilation, groups, *_ = call.args[at:]
    return [*map(int, strides)], [*map(int, padding)], [*map(int, dilation)], int(groups)


def _biased(ctx: Context, made: Any, bias: Any) -> Any:
    made = ctx.emit(made)
    if bias is None:
        return made
    column = (1, shape_of(bias)[0], *(1,) * (len(shape_of(made)) - 2))
    return ctx.emit(op.add(made, ctx.emit(op.reshape(bias, column))))


def _fprop(ctx: Context, call: Call) -> Any:
    """(data, weight, bias, geometry)."""
    data, weight, bias = call.args[:3]
    check_elements(input=data, weight=weight)
    strides, padding, dilation, groups = _geometry(call, 3)
    fprop = _FPROPS[len(strides)]
    return _biased(ctx, fprop(data, weight, strides, padding, dilation, groups), bias)


def _dgrad(ctx: Context, call: Call) -> Any:
    """(grad, weight, bias, size, geometry): a bias is a transposed convolution's."""
    grad, weight, bias, _ = call.args[:4]
    check_elements(grad=grad, weight=weight)
    gradients = ConvGradients(ctx, *_geometry(call, 4))
    return _biased(ctx, gradients.by_data(grad, weight, call.shape), bias)


def _wgrad(ctx: Context, call: Call) -> Any:
    """(grad, data, size, geometry)."""
    grad, data, _ = call.args[:3]
    check_elements(grad=grad, data=data)
    return ConvGradients(ctx, *_geometry(call, 3)).by_weight(grad, data, call.shape)


OWN: dict[str, Builder] = {
    f"relay_wgrad::conv{rank}d{name}.default": row
    for rank in _FPROPS
    for name, row in (("", _fprop), ("_backward_data", _dgrad), ("_backward_weight", _wgrad))
}
"""Overload -> builder."""
