"""ATen's convolution and its backward op, which is dgrad and wgrad of the dedicated operators."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...ops.conv2d_backward_data import construct as dgrad
from ...ops.conv2d_backward_weight import construct as wgrad
from ..context import Context, shape_of
from ..moving import cut
from ..onnx import nn as onnx_nn
from .call import Builder, Call
from .resizing import ints

op = relax.op
_FPROPS = {2: op.nn.conv2d, 3: op.nn.conv3d}


def _convolution(ctx: Context, call: Call) -> Any:
    """(x, weight, bias, stride, padding, dilation, transposed, output padding, groups)."""
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = (
        call.args[i] for i in range(9)
    )
    rank = len(shape_of(weight)) - 2
    settings: dict[str, Any] = {
        "strides": ints(stride, rank), "pads": ints(padding, rank) * 2,
        "dilations": ints(dilation, rank), "group": int(groups),
    }  # fmt: skip
    if not transposed:
        return onnx_nn.conv(ctx, call.onnx("Conv", [x, weight, bias], **settings))
    settings["output_padding"] = ints(extra, rank)
    node = call.onnx("ConvTranspose", [x, weight, bias], **settings)
    return onnx_nn.conv_transpose(ctx, node)


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
    dx, dw = _lifted(ctx, x), _lifted(ctx, weight)
    grad = _lifted(ctx, dy)
    lines = [[1], [0], [1]] if rank == 1 else [[], [], []]
    strides, pads, dilations = (
        [*line, *ints(v, rank)]
        for line, v in zip(lines, (stride, padding, dilation), strict=True)
    )  # fmt: skip
    made = _Gradients(ctx, strides, pads * 2, dilations, int(groups))
    pair = (made.of_transposed if transposed else made.of_plain)(grad, dx, dw, mask)
    of_x, of_weight = (
        g if g is None or rank > 1 else ctx.emit(op.reshape(g, shape_of(like)))
        for g, like in zip(pair, (x, weight), strict=True)
    )
    return of_x, of_weight, bias


def _lifted(ctx: Context, x: Any) -> Any:
    """A line as an image with one row."""
    shape = shape_of(x)
    return x if len(shape) != 3 else ctx.emit(op.reshape(x, (*shape[:2], 1, shape[2])))


class _Gradients:
    """The gradients of one convolution, of images or volumes."""

    def __init__(
        self, ctx: Context, strides: list[int], pads: list[int], dilation: list[int], groups: int
    ) -> None:
        self.ctx, self.rank = ctx, len(strides)
        self.given: dict[str, Any] = {
            "strides": strides,
            "padding": pads,
            "dilation": dilation,
            "groups": groups,
        }

    def of_plain(self, dy: Any, x: Any, weight: Any, mask: Any) -> tuple[Any, Any]:
        """dgrad(dy, w) and wgrad(dy, x)."""
        of_x = self._dgrad(dy, weight, shape_of(x)) if mask[0] else None
        return of_x, self._wgrad(dy, x, shape_of(weight)) if mask[1] else None

    def of_transposed(self, dy: Any, x: Any, weight: Any, mask: Any) -> tuple[Any, Any]:
        """y = dgrad(x, w): fprop(dy, w), and wgrad with x in the gradient's place.

        Pixels that output padding has added beyond the last window are no part of it.
        """
        g = self.given
        for i in range(self.rank):
            reach = g["dilation"][i] * (shape_of(weight)[2 + i] - 1) + 1
            least = (shape_of(x)[2 + i] - 1) * g["strides"][i] + reach - 2 * g["padding"][i]
            size = shape_of(dy)[2 + i]
            if size - least >= g["strides"][i]:
                dy = cut(self.ctx, dy, 2 + i, 0, least)
        of_x = None
        if mask[0]:
            fprop = _FPROPS[self.rank]
            made = fprop(dy, weight, g["strides"], g["padding"], g["dilation"], g["groups"])
            of_x = self.ctx.emit(made)
        return of_x, self._wgrad(x, dy, shape_of(weight)) if mask[1] else None

    def _dgrad(self, dy: Any, weight: Any, shape: tuple[int, ...]) -> Any:
        name = f"conv{self.rank}d_backward_data"
        return self.ctx.emit(dgrad(name, dy, weight, shape, **self.given, **_layouts(self.rank)))

    def _wgrad(self, dy: Any, x: Any, weight: tuple[int, ...]) -> Any:
        name = f"conv{self.rank}d_backward_weight"
        given = {**self.given, **_layouts(self.rank), "kernel_size": weight[2:]}
        return self.ctx.emit(wgrad(name, dy, x, **given))


def _layouts(rank: int) -> dict[str, Any]:
    pixels = "DHW"[3 - rank :]
    return {"grad_layout": f"NC{pixels}", "data_layout": f"NC{pixels}",
            "kernel_layout": f"OI{pixels}", "out_dtype": None}  # fmt: skip


CONVOLUTIONS: dict[str, Builder] = {
    "convolution.default": _convolution,
    "convolution_backward.default": _convolution_backward,
}
"""ATen overload -> builder."""
