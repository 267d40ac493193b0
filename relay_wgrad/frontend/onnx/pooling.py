"""Builders of pooling: of rows, images and volumes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from .. import volumes
from ..context import Context, Node, shape_of
from ..windows import Quad, check_window, image, pair, quad_of
from .nn import as_given, as_row, lifted


def read_pool(ctx: Context, node: Node) -> tuple[Any, tuple[int, int], tuple[int, int], Quad, Quad]:
    """(data, kernel, strides, declared padding, padding with what ceil_mode adds)."""
    data = ctx.tensor(node.operand(0))
    _, _, h, w = image(data)
    if pair(node, "dilations") != (1, 1):
        raise ValueError("dilated pooling has no gradient in TVM")
    kernel, strides = pair(node, "kernel_shape", None), pair(node, "strides")
    pad = quad_of(node, (h, w), kernel, strides, (1, 1))
    check_window((h, w), kernel, pad)
    if not node.attr("ceil_mode", 0):
        return data, kernel, strides, pad, pad
    # Rounding up is the same as padding the end; a window must still start on data or padding
    # that precedes it.
    ends = []
    for i, size in enumerate((h, w)):
        out = math.ceil((size + pad[i] + pad[i + 2] - kernel[i]) / strides[i]) + 1
        if (out - 1) * strides[i] >= size + pad[i]:
            out -= 1
        ends.append(max((out - 1) * strides[i] + kernel[i] - size - pad[i], pad[i + 2]))
    return data, kernel, strides, pad, (pad[0], pad[1], ends[0], ends[1])


def _any_rank(of_images: Callable[[Context, Node], Any]) -> Callable[[Context, Node], Any]:
    """A pooling of images, of volumes too, and of rows as images of height 1."""

    @functools.wraps(of_images)
    def build(ctx: Context, node: Node) -> Any:
        data = ctx.tensor(node.operand(0))
        if volumes.is_volume(data):
            return volumes.pool(ctx, node, of_images)
        if len(shape_of(data)) != 3:
            return of_images(ctx, node)
        row = replace(node.operand(0), expr=lifted(ctx, data))
        out = of_images(ctx, replace(as_row(node), operands=[row]))
        return as_given(ctx, node, out)

    return build


@_any_rank
def max_pool(ctx: Context, node: Node) -> Any:
    """MaxPool; padding never wins.  Indices have no value: what takes them is refused."""
    data, kernel, strides, _, padding = read_pool(ctx, node)
    return _max_pool(ctx, data, kernel, strides, padding)


def _max_pool(
    ctx: Context, data: Any, kernel: tuple[int, int], strides: tuple[int, int], padding: Quad
) -> Any:
    """max_pool2d, in a form whose gradient is right.

    topi's pool_grad does not check a pixel's window index against the output's size: where
    outputs·stride < kernel it reads the next row's first window and counts pixels twice.  One
    output per axis has no use for its stride; more get more padding and are cut again.
    """
    size, stride, pad = image(data)[2:], list(strides), list(padding)
    outputs = [(size[i] + pad[i] + pad[i + 2] - kernel[i]) // stride[i] + 1 for i in range(2)]
    cuts = []
    for i in range(2):
        if outputs[i] == 1:
            stride[i] = max(stride[i], kernel[i])
        elif outputs[i] * stride[i] < kernel[i]:
            enough = -(-kernel[i] // stride[i])
            pad[i + 2] += (enough - outputs[i]) * stride[i]
            cuts.append((2 + i, outputs[i]))
    out = ctx.emit(relax.op.nn.max_pool2d(data, kernel, tuple(stride), tuple(pad)))
    for axis, count in cuts:
        out = ctx.emit(relax.TupleGetItem(ctx.emit(relax.op.split(out, [count], axis)), 0))
    return out


@_any_rank
def average_pool(ctx: Context, node: Node) -> Any:
    """AveragePool; padding is averaged only with count_include_pad=1.

    A window that covered the whole feature map at the size for which the file was made is a
    global average: it follows a new image size.
    """
    if _is_global(ctx, node):
        return global_average_pool(ctx, node)
    return _windows(ctx, node)


@_any_rank
def _windows(ctx: Context, node: Node) -> Any:
    """The mean of each window."""
    data, kernel, strides, declared, padding = read_pool(ctx, node)
    include = bool(node.attr("count_include_pad", 0))
    out = ctx.emit(
        relax.op.nn.avg_pool2d(data, kernel, strides, padding, count_include_pad=include)
    )
    if include and padding != declared:
        # What ceil_mode added counts neither as data nor as padding.
        _, _, p, q = image(out)
        _, _, h, w = image(data)
        counts = []
        for i, (outs, size) in enumerate(((p, h), (q, w))):
            start = np.arange(outs) * strides[i]
            counts.append(
                np.minimum(start + kernel[i], size + declared[i] + declared[i + 2]) - start
            )
        ratio = kernel[0] * kernel[1] / np.outer(counts[0], counts[1])
        out = ctx.emit(relax.op.multiply(out, ctx.const(ratio[None, None])))
    return out


def _is_global(ctx: Context, node: Node) -> bool:
    before = ctx.original.get(node.proto.input[0])
    after = ctx.original.get(node.proto.output[0])
    if before is None or after is None or len(before) != 4 or after[2:] != (1, 1):
        return False
    kernel = pair(node, "kernel_shape", None)
    pads = quad_of(node, (before[2], before[3]), kernel, pair(node, "strides"), (1, 1))
    if any(pads) and node.attr("count_include_pad", 0):
        return False
    return all(kernel[i] - pads[i] >= before[2 + i] for i in range(2))


def global_average_pool(ctx: Context, node: Node) -> Any:
    """GlobalAveragePool: the mean over every axis after the channels'."""
    data = ctx.tensor(node.operand(0))
    axes = list(range(2, len(shape_of(data))))
    return ctx.emit(relax.op.mean(data, axes, keepdims=True))


@_any_rank
def global_max_pool(ctx: Context, node: Node) -> Any:
    """GlobalMaxPool, as a pooling whose window is the image."""
    data = ctx.tensor(node.operand(0))
    _, _, h, w = image(data)
    return _max_pool(ctx, data, (h, w), (h, w), (0, 0, 0, 0))


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
    kept = {k: v for k, v in node.attributes.items() if k != "p"}
    mean = replace(node, operands=[given], attributes={**kept, "count_include_pad": 1})
    count = math.prod(int(k) for k in node.attr("kernel_shape", []))
    total = ctx.emit(relax.op.multiply(_windows(ctx, mean), ctx.const(float(count))))
    return _root(ctx, total, p)


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
