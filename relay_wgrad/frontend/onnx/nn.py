"""Builders of the layers: convolution, batch normalization, dropout, fully connected.

Each takes the function under construction and one ONNX node and returns the node's (first)
result.  They emit only ops that have a gradient on stock TVM, except `conv2d_transpose`, for
which `relay_wgrad.register` adds one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from ...conventions import onnx
from ...conventions.common import extent
from .. import layers, norms
from ..context import Context, shape_of
from ..sizes import of_one
from .node import Node
from .windows import padding_of, per_axis


def conv(ctx: Context, node: Node) -> Any:
    """Conv: data (N, C, …), weight (K, C/groups, …), optional bias (K,); of one to three axes."""
    data, weight, rank = _operands(ctx, node)
    shape, wshape, groups = shape_of(data), shape_of(weight), int(node.attr("group", 1))
    ctx.parameter(node.operand(1), "weight", math.prod(wshape[1:]))
    strides, dilation = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    padding = padding_of(node, shape[2:], wshape[2:], strides, dilation)
    if rank == 2:
        onnx.conv(  # which refuses what does not fit
            of_one(shape), wshape, dilations=dilation, group=groups, pads=padding, strides=strides,
            kernel_shape=node.attr("kernel_shape"),
        )  # fmt: skip
    bias = _bias(ctx, node, 2, wshape[0])
    return layers.conv(ctx, data, weight, bias, strides, padding, dilation, groups)


def conv_transpose(ctx: Context, node: Node) -> Any:
    """ConvTranspose: data (N, C, …), weight (C, K/groups, …), bias (K,) or none; of one to three
    axes."""
    data, weight, rank = _operands(ctx, node)
    shape, wshape, groups = shape_of(data), shape_of(weight), int(node.attr("group", 1))
    strides, dilation = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    extra = per_axis(node, "output_padding", rank, 0, 0)
    auto, wanted = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    if rank == 2:
        onnx.conv_transpose(  # which refuses what does not fit
            of_one(shape), wshape, auto_pad=auto, dilations=dilation, group=groups,
            kernel_shape=node.attr("kernel_shape"), output_padding=extra, output_shape=wanted,
            pads=node.attr("pads"), strides=strides,
        )  # fmt: skip
    # Each output pixel gets about R·S/(strides) taps of C/groups channels.
    taps = max(math.prod(wshape[2:]) // math.prod(strides), 1)
    ctx.parameter(node.operand(1), "weight", shape[1] // groups * taps)
    for o, s, d in zip(extra, strides, dilation, strict=True):
        if o >= max(s, d):
            raise ValueError(
                f"output_padding={list(extra)}: must be less than strides or dilations, got"
                f" {list(strides)} and {list(dilation)}"
            )
    pads: Sequence[int] = (0,) * (2 * rank)
    if wanted is not None:
        wanted = [int(v) for v in wanted][-rank:]
    elif auto.startswith("SAME"):
        wanted = [p * s for p, s in zip(shape[2:], strides, strict=True)]
    else:
        pads = padding_of(node, shape[2:], wshape[2:], strides, dilation)
    full = [
        (p - 1) * s + extent(k, d) + o
        for p, s, k, d, o in zip(shape[2:], strides, wshape[2:], dilation, extra, strict=True)
    ]
    starts, totals = onnx.rows(full, auto, pads, wanted)
    bias = _bias(ctx, node, 2, wshape[1] * groups)
    return layers.conv_transpose(ctx, data, weight, bias, strides, dilation, groups, starts, totals)


def _operands(ctx: Context, node: Node) -> tuple[Any, Any, int]:
    """(data, weight, spatial axes) of a convolution."""
    data, weight = ctx.tensor(node.operand(0)), ctx.parameter(node.operand(1))
    shape, wshape = shape_of(data), shape_of(weight)
    if len(wshape) != len(shape):
        raise ValueError(
            f"weight of shape {list(wshape)}: must have as many axes as the data, {len(shape)}"
        )
    if not 3 <= len(shape) <= 5:
        raise ValueError(f"expected 3 to 5 axes, got shape {list(shape)}")
    given = node.attr("kernel_shape")
    if given is not None and tuple(int(v) for v in given) != wshape[2:]:
        raise ValueError(f"kernel_shape must be W's, got {list(given)} and {list(wshape[2:])}")
    return data, weight, len(shape) - 2


def _bias(ctx: Context, node: Node, index: int, channels: int) -> Any:
    """A number for each channel of the result: another count would be broadcast, or broadcast the
    result of one filter."""
    if not node.has(index):
        return None
    bias = ctx.parameter(node.operand(index), "bias")
    if shape_of(bias) != (channels,):
        raise ValueError(
            f"B must have one number for each of {channels} channels, got shape"
            f" {list(shape_of(bias))}"
        )
    return bias


def gemm(ctx: Context, node: Node) -> Any:
    """Gemm: alpha·A·B + beta·C, A (N, in) or its transpose, B likewise, C broadcastable."""
    a, b = ctx.tensor(node.operand(0)), ctx.parameter(node.operand(1))
    if len(shape_of(a)) != 2 or len(shape_of(b)) != 2:
        raise ValueError(f"expected matrices, got {list(shape_of(a))} and {list(shape_of(b))}")
    if node.attr("transA", 0):
        a = ctx.emit(relax.op.permute_dims(a))
    if node.attr("transB", 0):
        b = ctx.emit(relax.op.permute_dims(b))
    ctx.parameter(node.operand(1), "weight", shape_of(b)[0])
    _check_features(ctx, shape_of(a)[1], shape_of(b)[0])
    out = ctx.emit(relax.op.matmul(a, b))
    if (alpha := float(node.attr("alpha", 1.0))) != 1.0:
        out = ctx.emit(relax.op.multiply(out, ctx.const(alpha)))
    if node.has(2):
        bias = ctx.parameter(node.operand(2), "bias")
        if (beta := float(node.attr("beta", 1.0))) != 1.0:
            bias = ctx.emit(relax.op.multiply(bias, ctx.const(beta)))
        out = ctx.emit(relax.op.add(out, bias))
    return out


def matmul(ctx: Context, node: Node) -> Any:
    """MatMul, with NumPy's broadcasting of the leading axes."""
    a, b = ctx.tensor(node.operand(0)), ctx.parameter(node.operand(1))
    bshape = shape_of(b)
    ctx.parameter(node.operand(1), "weight", bshape[-2] if len(bshape) > 1 else bshape[0])
    _check_features(ctx, shape_of(a)[-1], bshape[-2] if len(bshape) > 1 else bshape[0])
    return ctx.emit(relax.op.matmul(a, b))


def _check_features(ctx: Context, given: int, expected: int) -> None:
    if given == expected:
        return
    reason = f": this layer fixes the image size{ctx.options.size}" if ctx.options.resized else ""
    raise ValueError(f"expects {expected} features, got {given}{reason}")


def batch_norm(ctx: Context, node: Node) -> Any:
    """BatchNormalization over (N, H, W), written out so that it differentiates.

    Training mode normalizes by the batch's statistics and gives the updated running ones as
    outputs of the function: running·momentum + batch·(1 − momentum), with the population variance,
    as ONNX defines it.  Evaluation mode uses the running ones.
    """
    x = ctx.tensor(node.operand(0))
    shape = shape_of(x)
    gamma = ctx.affine_parameter(node.operand(1), "scale")
    beta = ctx.affine_parameter(node.operand(2), "bias")
    mean = ctx.parameter(node.operand(3), "running_mean")
    var = ctx.parameter(node.operand(4), "running_var")
    for vector in (gamma, beta, mean, var):
        if shape_of(vector) != shape[1:2]:
            raise ValueError(f"statistics {list(shape_of(vector))} do not fit {shape[1]} channels")
    epsilon = float(node.attr("epsilon", 1e-5))
    if ctx.options.bn == "eval" or (ctx.options.bn == "frozen" and ctx.is_frozen(gamma, beta)):
        return norms.evaluated(ctx, x, gamma, beta, mean, var, epsilon)
    momentum, known = float(node.attr("momentum", 0.9)), {name for name, _ in ctx.states}
    running: list[tuple[str, Any, Any] | None] = []
    for index, value in enumerate((mean, var), start=3):
        name = node.operand(index).param
        is_first = name is not None and name not in known
        running.append((str(name), value, ctx.const(1 - momentum)) if is_first else None)
    return norms.trained(ctx, x, gamma, beta, epsilon, momentum, running)


def lrn(ctx: Context, node: Node) -> Any:
    """LRN: x·(bias + alpha·(mean of squares over `size` channels))^(-beta), zeros outside.

    The channel window is an average pooling of the (N, 1, C, H·W) view: pool2d has a gradient,
    pool3d (TVM's own way) has none.
    """
    x = ctx.tensor(node.operand(0))
    shape = shape_of(x)
    size = int(node.attr("size", 0))
    if size < 1:
        raise ValueError(f"size={size}: the window must have at least 1 channel")
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    square = ctx.emit(relax.op.multiply(x, x))
    flat = ctx.emit(relax.op.reshape(square, (shape[0], 1, shape[1], math.prod(shape[2:]))))
    pooled = ctx.emit(
        relax.op.nn.avg_pool2d(flat, (size, 1), (1, 1), (low, 0, high, 0), count_include_pad=True)
    )
    mean = ctx.emit(relax.op.reshape(pooled, shape))
    alpha, bias = ctx.const(node.attr("alpha", 1e-4)), ctx.const(node.attr("bias", 1.0))
    base = ctx.emit(relax.op.add(relax.op.multiply(mean, alpha), bias))
    power = ctx.emit(relax.op.power(base, ctx.const(-float(node.attr("beta", 0.75)))))
    return ctx.emit(relax.op.multiply(x, power))


def dropout(ctx: Context, node: Node) -> Any:
    """Dropout: a product with a mask that is an input, or the identity."""
    x, rate = ctx.tensor(node.operand(0)), float(node.setting("ratio", 1, 0.5))
    asked = ctx.options.dropout
    if asked == "file":
        asked = "mask" if node.has(2) and node.static(2, "training_mode").any() else "off"
    if asked == "off":
        if rate != 0.0:
            ctx.kept_whole.append(node.proto.name or node.proto.output[0])
        return x
    return layers.masked(ctx, x, rate)


LAYERS: dict[str, Callable[[Context, Node], Any]] = {
    "BatchNormalization": batch_norm,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Dropout": dropout,
    "Gemm": gemm,
    "LRN": lrn,
    "MatMul": matmul,
}
