"""Builders of the layers: convolution, normalization, dropout, fully connected.

Each takes the function under construction and one ONNX node and returns the node's (first)
result.  They emit only ops that have a gradient on stock TVM, except `conv2d_transpose`, for
which `relay_wgrad.register` adds one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from ...conventions import onnx
from .. import volumes
from ..context import Context, Node, shape_of
from ..sizes import of_one
from ..windows import image, pair, quad_of, weight_of


def conv(ctx: Context, node: Node) -> Any:
    """Conv: data (N, C, H, W), weight (K, C/groups, R, S), optional bias (K,); also 1-D and 3-D."""
    node, data, weight = _as_image(ctx, node)
    if volumes.is_volume(data):
        return _bias(ctx, node, 2, volumes.conv(ctx, node))
    shape, wshape, groups = image(data), weight_of(weight), int(node.attr("group", 1))
    ctx.parameter(node.operand(1), "weight", math.prod(wshape[1:]))
    strides, dilation = pair(node, "strides"), pair(node, "dilations")
    padding = quad_of(node, shape[2:], wshape[2:], strides, dilation)
    onnx.conv(  # which refuses what does not fit
        of_one(shape), wshape, dilations=dilation, group=groups, pads=padding, strides=strides,
        kernel_shape=node.attr("kernel_shape"),
    )  # fmt: skip
    out = ctx.emit(
        relax.op.nn.conv2d(data, weight, strides, padding, dilation, groups)  # NCHW, OIHW
    )
    return as_given(ctx, node, _bias(ctx, node, 2, out))


def conv_transpose(ctx: Context, node: Node) -> Any:
    """ConvTranspose: data (N, C, H, W), weight (C, K/groups, R, S), bias (K,) or none; also 1-D
    and 3-D."""
    node, data, weight = _as_image(ctx, node)
    if volumes.is_volume(data):
        out, zeros = volumes.conv_transpose(ctx, node)
        return _bias(ctx, node, 2, _with_zeros(ctx, out, zeros))
    shape, wshape, groups = image(data), weight_of(weight), int(node.attr("group", 1))
    strides, dilation = pair(node, "strides"), pair(node, "dilations")
    found = onnx.conv_transpose(
        of_one(shape), wshape,
        auto_pad=node.attr("auto_pad", "NOTSET"), dilations=dilation, group=groups,
        kernel_shape=node.attr("kernel_shape"),
        output_padding=pair(node, "output_padding", 0, least=0),
        output_shape=node.attr("output_shape"), pads=node.attr("pads"), strides=strides,
    )  # fmt: skip
    # Each output pixel gets about R·S/(strides) taps of C/groups channels.
    taps = max(math.prod(wshape[2:]) // math.prod(strides), 1)
    ctx.parameter(node.operand(1), "weight", shape[1] // groups * taps)
    written = onnx.to_conv_transpose(found)
    above, left, below, right = written.around
    around = ((above, below), (left, right))
    out = ctx.emit(
        relax.op.nn.conv2d_transpose(
            data, weight, strides, written.arguments["pads"], written.arguments["output_padding"],
            dilation, groups,
        )
    )  # fmt: skip
    return as_given(ctx, node, _bias(ctx, node, 2, _with_zeros(ctx, out, around)))


def _with_zeros(ctx: Context, out: Any, around: Sequence[tuple[int, int]]) -> Any:
    """Rows and columns of zeros before and after: concat has a gradient, nn.pad has none."""
    for axis, (before, after) in enumerate(around, 2):
        parts = [out]
        for side, at in ((before, 0), (after, 1)):
            if side:
                shape = [*shape_of(out)]
                shape[axis] = side
                zeros = ctx.full(tuple(shape), 0, ctx.options.dtype)
                parts = [zeros, *parts] if at == 0 else [*parts, zeros]
        out = ctx.emit(relax.op.concat(parts, axis)) if len(parts) > 1 else out
    return out


# What a 1-D convolution says of its axis, and what is true of the one that an image has before it.
_LIFTED = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0, "output_shape": 1}


def _as_image(ctx: Context, node: Node) -> tuple[Node, Any, Any]:
    """(node, data, weight) of a convolution; a 1-D one as that of images of height 1."""
    data, weight = ctx.tensor(node.operand(0)), ctx.parameter(node.operand(1))
    rank = len(shape_of(data))
    if len(shape_of(weight)) != rank:
        raise ValueError(
            f"weight of shape {list(shape_of(weight))}: must have as many axes as the data, {rank}"
        )
    if rank != 3:
        return node, data, weight
    return as_row(node), lifted(ctx, data), lifted(ctx, weight)


def as_row(node: Node) -> Node:
    """A node of one spatial axis as that of images of height 1."""
    attributes = dict(node.attributes)
    for name in {*_LIFTED, "pads"} & set(attributes):
        values, count = list(attributes[name]), 2 if name == "pads" else 1
        if len(values) != count:
            raise ValueError(f"{name}={values}: must have {count} values for one spatial axis")
        attributes[name] = [0, values[0], 0, values[1]] if count == 2 else [_LIFTED[name], *values]
    return replace(node, attributes=attributes)


def lifted(ctx: Context, tensor: Any) -> Any:
    n, c, size = shape_of(tensor)
    return ctx.emit(relax.op.reshape(tensor, (n, c, 1, size)))


def as_given(ctx: Context, node: Node, out: Any) -> Any:
    """The result in the rank of the node's data."""
    if len(shape_of(ctx.tensor(node.operand(0)))) == len(shape_of(out)):
        return out
    n, c, _, size = shape_of(out)
    return ctx.emit(relax.op.reshape(out, (n, c, size)))


def _bias(ctx: Context, node: Node, index: int, out: Any) -> Any:
    if not node.has(index):
        return out
    bias = ctx.parameter(node.operand(index), "bias")
    (size,) = shape_of(bias)
    column = (1, size) + (1,) * (len(shape_of(out)) - 2)
    return ctx.emit(relax.op.add(out, ctx.emit(relax.op.reshape(bias, column))))


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
    gamma = ctx.parameter(node.operand(1), "scale")
    beta = ctx.parameter(node.operand(2), "bias")
    mean = ctx.parameter(node.operand(3), "running_mean")
    var = ctx.parameter(node.operand(4), "running_var")
    for vector in (gamma, beta, mean, var):
        if shape_of(vector) != shape[1:2]:
            raise ValueError(f"statistics {list(shape_of(vector))} do not fit {shape[1]} channels")
    epsilon = ctx.const(node.attr("epsilon", 1e-5))
    column = (1, shape[1]) + (1,) * (len(shape) - 2)

    def lift(vector: Any) -> Any:
        return ctx.emit(relax.op.reshape(vector, column))

    if ctx.options.bn == "eval" or (ctx.options.bn == "frozen" and ctx.is_frozen(gamma, beta)):
        deviation = ctx.emit(relax.op.sqrt(relax.op.add(var, epsilon)))
        scale = ctx.emit(relax.op.divide(gamma, deviation))
        centred = ctx.emit(relax.op.subtract(x, lift(mean)))
        return ctx.emit(relax.op.add(relax.op.multiply(centred, lift(scale)), lift(beta)))

    axes = [0, *range(2, len(shape))]
    check_statistics(ctx, shape, axes)
    batch_mean = ctx.emit(relax.op.mean(x, axes, keepdims=True))
    centred = ctx.emit(relax.op.subtract(x, batch_mean))
    batch_var = ctx.emit(relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True))
    deviation = ctx.emit(relax.op.sqrt(relax.op.add(batch_var, epsilon)))
    normal = ctx.emit(relax.op.divide(centred, deviation))
    momentum = float(node.attr("momentum", 0.9))
    for index, (running, batch) in enumerate(((mean, batch_mean), (var, batch_var))):
        name = node.operand(3 + index).param
        if name is not None and all(name != known for known, _ in ctx.states):
            kept = relax.op.multiply(running, ctx.const(momentum))
            fresh = relax.op.multiply(relax.op.reshape(batch, shape[1:2]), ctx.const(1 - momentum))
            ctx.states.append((name, ctx.emit(relax.op.add(kept, fresh))))
    return ctx.emit(relax.op.add(relax.op.multiply(normal, lift(gamma)), lift(beta)))


def check_statistics(ctx: Context, shape: tuple[Any, ...], axes: Sequence[int]) -> None:
    """Raises ValueError for the statistics of one value; an open batch then has two at least."""
    if math.prod(shape[a] for a in axes[1:]) != 1:
        return
    if not isinstance(shape[axes[0]], int):
        ctx.at_least(2, "batch statistics need more than one value per channel")
    elif shape[axes[0]] == 1:
        raise ValueError(
            f"batch statistics of {list(shape)} need more than one value per channel: "
            "use a larger batch or image, or bn='eval'"
        )


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
    return masked(ctx, x, rate)


def masked(ctx: Context, x: Any, rate: float) -> Any:
    """x with elements left out at this rate."""
    if rate == 0.0:
        return x
    if rate == 1.0:
        return ctx.emit(relax.op.multiply(x, relax.const(0.0, str(x.ty.dtype))))
    if not 0.0 < rate < 1.0:
        raise ValueError(f"a dropout rate of {rate} is not between 0 and 1")
    name = f"dropout_mask_{len(ctx.masks)}"
    spec, mask = ctx.input(name, "mask", shape_of(x), ctx.options.dtype, keep=1.0 - rate)
    ctx.masks.append((spec, mask))
    return ctx.emit(relax.op.multiply(x, mask))


LAYERS: dict[str, Callable[[Context, Node], Any]] = {
    "BatchNormalization": batch_norm,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Dropout": dropout,
    "Gemm": gemm,
    "LRN": lrn,
    "MatMul": matmul,
}
