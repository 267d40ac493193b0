"""Builders of pooling: of rows, images and volumes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import relax

from .. import layers
from ..context import Context, shape_of
from .node import Node
from .windows import padding_of, per_axis

Ints = tuple[int, ...]


def window(ctx: Context, node: Node) -> tuple[Any, Ints, Ints, Ints]:
    """(data, kernel, strides, padding before each axis and after each)."""
    data = ctx.tensor(node.operand(0))
    sizes = shape_of(data)[2:]
    rank = len(sizes)
    if not 1 <= rank <= 3:
        raise ValueError(f"expected 3 to 5 axes, got shape {list(shape_of(data))}")
    dilation = per_axis(node, "dilations", rank)
    if set(dilation) != {1}:
        raise ValueError("dilated pooling has no gradient in TVM")
    kernel, strides = per_axis(node, "kernel_shape", rank, None), per_axis(node, "strides", rank)
    return data, kernel, strides, padding_of(node, sizes, kernel, strides, dilation)


def max_pool(ctx: Context, node: Node) -> Any:
    """MaxPool; padding never wins.  Indices have no value: what takes them is refused."""
    return layers.max_pool(ctx, *window(ctx, node), node.attr("ceil_mode", 0))


def average_pool(ctx: Context, node: Node) -> Any:
    """AveragePool; padding is averaged only with count_include_pad=1.

    A window that covered the whole feature map at the size for which the file was made is a
    global average: it follows a new image size.
    """
    if _is_global(ctx, node):
        return global_average_pool(ctx, node)
    include = bool(node.attr("count_include_pad", 0))
    return layers.average_pool(ctx, *window(ctx, node), node.attr("ceil_mode", 0), include)


def _is_global(ctx: Context, node: Node) -> bool:
    before = ctx.original.get(node.proto.input[0])
    after = ctx.original.get(node.proto.output[0])
    if before is None or after is None or len(before) != 4 or after[2:] != (1, 1):
        return False
    kernel = per_axis(node, "kernel_shape", 2, None)
    pads = padding_of(node, before[2:], kernel, per_axis(node, "strides", 2), (1, 1))
    if any(pads) and node.attr("count_include_pad", 0):
        return False
    return all(kernel[i] - pads[i] >= before[2 + i] for i in range(2))


def global_average_pool(ctx: Context, node: Node) -> Any:
    """GlobalAveragePool: the mean over every axis after the channels'."""
    return layers.global_average_pool(ctx, ctx.tensor(node.operand(0)))


def global_max_pool(ctx: Context, node: Node) -> Any:
    """GlobalMaxPool, as a pooling whose window is the image."""
    data = ctx.tensor(node.operand(0))
    sizes = shape_of(data)[2:]
    return layers.max_pool(ctx, data, sizes, sizes, (0,) * (2 * len(sizes)))


def _powers(ctx: Context, node: Node) -> tuple[Any, int]:
    """(|x|^p, p)."""
    x, p = ctx.tensor(node.operand(0)), int(node.attr("p", 2))
    if p < 1:
        raise ValueError(f"p={p}: must be at least 1")
    if p == 2:
        return ctx.emit(relax.op.multiply(x, x)), p
    size = ctx.emit(relax.op.abs(x))
    return (size if p == 1 else ctx.emit(relax.op.power(size, ctx.const(float(p))))), p


def _root(ctx: Context, total: Any, p: int) -> Any:
    return total if p == 1 else ctx.emit(relax.op.power(total, ctx.const(1 / p)))


def lp_pool(ctx: Context, node: Node) -> Any:
    """LpPool: the norm of order `p` of each window."""
    if node.attr("ceil_mode", 0):
        raise ValueError("ceil_mode=1 is not supported")
    powers, p = _powers(ctx, node)
    given = replace(node.operand(0), name="", expr=powers)
    read = window(ctx, replace(node, operands=[given]))
    mean = layers.average_pool(ctx, *read, include_padding=True)
    count = float(math.prod(read[1]))
    return _root(ctx, ctx.emit(relax.op.multiply(mean, ctx.const(count))), p)


def global_lp_pool(ctx: Context, node: Node) -> Any:
    """GlobalLpPool: the norm of order `p` of each channel."""
    powers, p = _powers(ctx, node)
    axes = list(range(2, len(shape_of(powers))))
    return _root(ctx, ctx.emit(relax.op.sum(powers, axes, keepdims=True)), p)


POOLS: dict[str, Callable[[Context, Node], Any]] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": global_max_pool,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
}
