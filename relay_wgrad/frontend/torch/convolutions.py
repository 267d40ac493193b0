"""ATen's convolution and its backward op, which is dgrad and wgrad of the dedicated operators."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .. import layers
from ..context import Context, shape_of
from ..conv_gradients import ConvGradients
from .call import Builder, Call, check_elements, ints
from .layers import transposed as transposed_conv

op = relax.op


def _convolution(ctx: Context, call: Call) -> Any:
    """(x, weight, bias, stride, padding, dilation, transposed, output padding, groups)."""
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = (
        call.args[i] for i in range(9)
    )
    check_elements(input=x, weight=weight)
    rank = len(shape_of(weight)) - 2
    strides, pads, dilations = (ints(given, rank) for given in (stride, padding, dilation))
    if not transposed:
        return layers.conv(ctx, x, weight, bias, strides, pads * 2, dilations, int(groups))
    return transposed_conv(
        ctx, x, weight, bias, strides, pads, ints(extra, rank), dilations, int(groups)
    )


def _convolution_backward(ctx: Context, call: Call) -> tuple[Any, Any, Any]:
    """(dy, x, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups,
    mask): the gradients that the mask wants, by x, by weight and by bias."""
    dy, x, weight, _, stride, padding, dilation, transposed, _, groups, mask = (
        call.args[i] for i in range(11)
    )
    rank = len(shape_of(weight)) - 2
    bias = None
    if mask[2]:
        bias = ctx.emit(op.sum(dy, [a for a in range(rank + 2) if a != 1]))
    made = ConvGradients(
        ctx, ints(stride, rank), ints(padding, rank) * 2, ints(dilation, rank), int(groups)
    )
    of_x, of_weight = made.gradients(dy, x, weight, mask, transposed=bool(transposed))
    return of_x, of_weight, bias


CONVOLUTIONS: dict[str, Builder] = {
    "convolution.default": _convolution,
    "convolution_backward.default": _convolution_backward,
}
"""ATen overload -> builder."""
