"""Layers of volumes (N, C, D, H, W), for ONNX' nodes and so for PyTorch's: convolutions by the
operators of three dimensions, pools by two poolings of images, of which each has a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import relax

from ..conventions.common import Axis, extent
from ..conventions.onnx import split_total
from .context import Context, Node, shape_of
from .windows import each, padding_of

RANK = 3


def is_volume(expr: Any) -> bool:
    return len(shape_of(expr)) == 2 + RANK


def conv(ctx: Context, node: Node) -> Any:
    """Conv without its bias: data (N, C, D, H, W), weight (K, C/groups, T, R, S)."""
    data, weight = ctx.tensor(node.operand(0)), ctx.parameter(node.operand(1))
    shape, wshape = shape_of(data), shape_of(weight)
    ctx.parameter(node.operand(1), "weight", math.prod(wshape[1:]))
    strides, dilation = each(node, "strides", RANK), each(node, "dilations", RANK)
    _same_kernel(node, wshape[2:])
    padding = padding_of(node, shape[2:], wshape[2:], strides, dilation)
    groups = int(node.attr("group", 1))
    return ctx.emit(relax.op.nn.conv3d(data, weight, strides, padding, dilation, groups))


def conv_transpose(ctx: Context, node: Node) -> tuple[Any, list[tuple[int, int]]]:
    """ConvTranspose without its bias, and the zeros (before, after) that are missing of each axis:
    data (N, C, D, H, W), weight (C, K/groups, T, R, S)."""
    data, weight = ctx.tensor(node.operand(0)), ctx.parameter(node.operand(1))
    pixels, wshape = shape_of(data)[2:], shape_of(weight)
    strides, dilation = each(node, "strides", RANK), each(node, "dilations", RANK)
    extra = each(node, "output_padding", RANK, 0, 0)
    _same_kernel(node, wshape[2:])
    auto, wanted = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    groups = int(node.attr("group", 1))
    taps = max(math.prod(wshape[2:]) // math.prod(strides), 1)
    ctx.parameter(node.operand(1), "weight", shape_of(data)[1] // groups * taps)
    if wanted is None and auto.startswith("SAME"):
        wanted = [p * s for p, s in zip(pixels, strides, strict=True)]
    pads = (0,) * (2 * RANK)
    if wanted is None:
        pads = padding_of(node, pixels, wshape[2:], strides, dilation)
    axes = []
    for i, (p, s) in enumerate(zip(pixels, strides, strict=True)):
        if extra[i] >= max(s, dilation[i]):
            raise ValueError(
                f"output_padding={list(extra)}: must be less than strides or dilations, got"
                f" {list(strides)} and {list(dilation)}"
            )
        reach = extent(wshape[2 + i], dilation[i])
        full = (p - 1) * s + reach + extra[i]
        start, total = pads[i], full - pads[i] - pads[i + RANK]
        if wanted is not None:
            total = int(list(wanted)[-RANK:][i])
            start = split_total(auto, max(full - total, 0))[0]
        axes.append(Axis(p, reach, s, start, total))
    if min(axis.size for axis in axes) < 1:
        raise ValueError(f"the output would be empty, its sizes {[axis.total for axis in axes]}")
    ends = [axis.padding for axis in axes]
    more = [axis.size + sum(pad) - axis.full for axis, pad in zip(axes, ends, strict=True)]
    padding = (*(before for before, _ in ends), *(after for _, after in ends))
    out = ctx.emit(
        relax.op.nn.conv3d_transpose(data, weight, strides, padding, more, dilation, groups)
    )
    return out, [axis.zeros for axis in axes]


def _same_kernel(node: Node, kernel: tuple[int, ...]) -> None:
    given = node.attr("kernel_shape")
    if given is not None and tuple(int(v) for v in given) != kernel:
        raise ValueError(f"kernel_shape must be W's, got {list(given)} and {list(kernel)}")


# What a pooling says of its axes; `pads` of both ends.
_OF_AXES = ("kernel_shape", "strides", "dilations")


def pool(ctx: Context, node: Node, of_images: Callable[[Context, Node], Any]) -> Any:
    """Pooling over (H, W), then over D: a window's maximum is that of its slices' maxima, the first
    of equal ones too, and its average is theirs, whatever is counted, as counts are products."""
    data = ctx.tensor(node.operand(0))
    n, c, d, h, w = shape_of(data)
    planes = ctx.emit(relax.op.reshape(data, (n, c * d, h, w)))
    made = of_images(ctx, _part(node, planes, slice(1, RANK)))
    p, q = shape_of(made)[2:]
    columns = ctx.emit(relax.op.reshape(made, (n, c, d, p * q)))
    out = of_images(ctx, _part(node, columns, slice(0, 1)))
    return ctx.emit(relax.op.reshape(out, (n, c, shape_of(out)[2], p, q)))


def _part(node: Node, data: Any, axes: slice) -> Node:
    """The pooling of an image along some of the axes; a lone one is its height."""
    attributes = dict(node.attributes)

    def taken(values: list[int], rest: int) -> list[int]:
        some = values[axes]
        return some if len(some) == 2 else [*some, rest]

    for name in {*_OF_AXES, "pads"} & set(attributes):
        values, count = [int(v) for v in attributes[name]], RANK * (1 + (name == "pads"))
        if len(values) != count:
            raise ValueError(f"{name}={values}: must have {count} values for three spatial axes")
        attributes[name] = taken(values[:RANK], int(name != "pads"))
        if name == "pads":
            attributes[name] += taken(values[RANK:], 0)
    return replace(node, operands=[replace(node.operand(0), expr=data)], attributes=attributes)
