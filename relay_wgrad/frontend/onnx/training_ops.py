"""Builders of ONNX Runtime's training operators, the domain `com.microsoft`.

Nothing is differentiated again here: a graph that has them is a gradient already.  Each operator is
given what ONNX Runtime's gradient builder gives it: ReluGrad, SigmoidGrad, TanhGrad and those of
softmaxes the forward *result*, GeluGrad and ConvGrad the forward operand, and
BatchNormalizationGrad the batch's mean and the inverse of its standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ...ir import const_like
from ...ops.ties import gelu_slope
from .. import loss_terms as terms
from .. import norms
from ..context import Context, shape_of
from ..conv_gradients import ConvGradients
from ..layers import whole_padding
from ..weights import Array
from .node import Node
from .pooling import window
from .windows import padding_of, per_axis

op = relax.op
Builder = Callable[[Context, Node], Any]


def _operands(ctx: Context, node: Node, count: int) -> list[Any]:
    return [ctx.tensor(node.operand(i)) for i in range(count)]


def _has_result(node: Node, index: int) -> bool:
    """Whether a result has a name."""
    return index < len(node.proto.output) and bool(node.proto.output[index])


# ---- layers --------------------------------------------------------------------------------------


def conv_grad(ctx: Context, node: Node) -> list[Any]:
    """(dY, X, W) to (dX, dW, dB), those that have names."""
    dy, x, weight = _operands(ctx, node, 3)
    rank, size = len(shape_of(x)) - 2, shape_of(x)[2:]
    if rank not in (1, 2, 3) or len(shape_of(weight)) != rank + 2:
        raise ValueError(f"X and W must be of 1 to 3 dimensions, got {x.ty} and {weight.ty}")
    taps = shape_of(weight)[2:]
    given = node.attr("kernel_shape")
    if given is not None and tuple(given) != taps:
        raise ValueError(f"kernel_shape={list(given)} is not the weight's {list(taps)}")
    strides, dilation = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    pads = padding_of(node, size, taps, strides, dilation)
    made = ConvGradients(ctx, strides, pads, dilation, int(node.attr("group", 1)))
    of_x, of_weight = made.gradients(dy, x, weight, [_has_result(node, 0), _has_result(node, 1)])
    bias = None
    if _has_result(node, 2):
        bias = ctx.emit(op.sum(dy, [a for a in range(rank + 2) if a != 1]))
    return [of_x, of_weight, bias]


def batch_norm(ctx: Context, node: Node) -> list[Any]:
    """BatchNormInternal: (Y, running mean and variance, the batch's mean and 1/deviation)."""
    x, scale, bias, *running = _operands(ctx, node, 5)
    if not int(node.attr("training_mode", 1)):
        raise ValueError("training_mode=0: its saved mean is none")
    epsilon, momentum = float(node.attr("epsilon", 1e-5)), float(node.attr("momentum", 0.9))
    y, mean, inverse, variance = norms.with_statistics(ctx, x, scale, bias, epsilon)
    news = [
        norms.updated(ctx, old, new, momentum, ctx.const(1 - momentum))
        for old, new in zip(running, (mean, variance), strict=True)
    ]
    return [y, *news, mean, inverse]


def batch_norm_grad(ctx: Context, node: Node) -> list[Any]:
    """(dY, X, scale, mean, 1/deviation) to (dX, dscale, dbias)."""
    return [*norms.batch_gradients(ctx, *_operands(ctx, node, 5))]


def max_pool_grad(ctx: Context, node: Node) -> Any:
    """(dY, X), X in the place of MaxPool's indices (`training.linked`)."""
    dy = ctx.tensor(node.operand(0))
    if len(shape_of(dy)) != 4:
        raise ValueError(f"only images are supported, got dY of {list(shape_of(dy))}")
    if node.attr("storage_order", 0):
        raise ValueError("storage_order=1 is not supported")
    data, kernel, strides, declared = window(ctx, _without_first(node))
    padding = whole_padding(data, kernel, strides, declared, node.attr("ceil_mode", 0))
    return ctx.emit(op.grad.max_pool2d_backward(dy, data, kernel, strides, padding))


def average_pool_grad(ctx: Context, node: Node) -> Any:
    """(dY, X), X in place of nothing (`training.linked`): an average's gradient needs its size."""
    dy = ctx.tensor(node.operand(0))
    if len(shape_of(dy)) != 4:
        raise ValueError(f"only images are supported, got dY of {list(shape_of(dy))}")
    data, kernel, strides, declared = window(ctx, _without_first(node))
    padding = whole_padding(data, kernel, strides, declared, node.attr("ceil_mode", 0))
    include = bool(node.attr("count_include_pad", 0))
    if include and padding != list(declared):
        raise ValueError("ceil_mode=1 with count_include_pad=1 is not supported")
    return ctx.emit(
        op.grad.avg_pool2d_backward(dy, data, kernel, strides, padding, count_include_pad=include)
    )


def _without_first(node: Node) -> Node:
    return Node(node.proto, node.operands[1:], node.attributes)


# ---- elementwise, softmax ------------------------------------------------------------------------


def _slope(of: Callable[[Any, Any], Any]) -> Builder:
    """Of dY and what the forward operator gave, or was given."""
    return lambda ctx, node: ctx.emit(of(*_operands(ctx, node, 2)))


def _relu_slope(dy: Any, y: Any) -> Any:
    return op.where(op.greater(y, const_like(0, y)), dy, const_like(0, y))


def _softmax_grad(logs: bool, all_axes: bool) -> Builder:
    """Along an axis, or before opset 13 over all from there on."""

    def build(ctx: Context, node: Node) -> Any:
        dy, y = _operands(ctx, node, 2)
        rank = len(shape_of(y))
        axis = int(node.attr("axis", 1 if all_axes else -1))
        if not -rank <= axis < rank:
            raise ValueError(f"axis={axis} is not one of Y's {rank} axes")
        axis %= rank
        axes = list(range(axis, rank)) if all_axes else [axis]
        if logs:
            total = op.sum(dy, axes, keepdims=True)
            return ctx.emit(op.subtract(dy, op.multiply(op.exp(y), total)))
        total = op.sum(op.multiply(dy, y), axes, keepdims=True)
        return ctx.emit(op.multiply(y, op.subtract(dy, total)))

    return build


# ---- the loss ------------------------------------------------------------------------------------


def _ignored(node: Node, index: int) -> int | None:
    """The label that counts for nothing: an operand of the internal forms, else an attribute."""
    if node.has(index):
        return int(np.asarray(node.static(index, "ignore_index")).reshape(()))
    given = node.attr("ignore_index")
    return None if given is None else int(given)


def _class_weights(
    ctx: Context, node: Node, scores: Any, labels: Any, weight: int, ignored: int | None
) -> Any:
    of_class = ctx.tensor(node.operand(weight)) if node.has(weight) else None
    if str(labels.ty.dtype) != "int64":
        labels = ctx.emit(op.astype(labels, "int64"))
    return terms.class_weights(ctx, scores, labels, of_class, ignored)[0]


def _reduction(node: Node) -> str:
    how = str(node.attr("reduction", "mean"))
    if how not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be mean, sum or none, got {how!r}")
    return how


def cross_entropy(ctx: Context, node: Node) -> list[Any]:
    """(scores, labels[, weights][, ignored]) to (loss, log-probabilities)."""
    scores, labels = _operands(ctx, node, 2)
    logs = ctx.emit(op.nn.log_softmax(scores, 1))
    weights = _class_weights(ctx, node, logs, labels, 2, _ignored(node, 3))
    loss = ctx.emit(op.negative(op.sum(op.multiply(weights, logs), [1])))
    how = _reduction(node)
    if how != "none":
        loss = ctx.emit(op.sum(loss))
    if how == "mean":
        loss = ctx.emit(op.divide(loss, op.sum(weights)))
    return [loss, logs]


def cross_entropy_grad(ctx: Context, node: Node) -> Any:
    """(dY, log-probabilities, labels[, weights][, ignored]) to the gradient by the scores."""
    dy, logs, labels = _operands(ctx, node, 3)
    if node.has(5):
        raise ValueError("a bias is not supported")
    weights = _class_weights(ctx, node, logs, labels, 3, _ignored(node, 4))
    if _reduction(node) == "mean":
        dy = ctx.emit(op.divide(dy, op.sum(weights)))
    dy = ctx.emit(op.expand_dims(dy, 1)) if shape_of(dy) else dy
    spread = op.multiply(op.exp(logs), op.sum(weights, [1], keepdims=True))
    return ctx.emit(op.multiply(op.subtract(spread, weights), dy))


# ---- sums and products ---------------------------------------------------------------------------


def accumulated(ctx: Context, node: Node) -> list[Any]:
    """InPlaceAccumulatorV2: (buffer, value[, overwrite]): the new buffer, for both results.

    ONNX Runtime's first result says only that its buffer has changed in place; here nothing does.
    """
    buffer, value = _operands(ctx, node, 2)
    new = ctx.emit(op.add(buffer, value))
    if node.has(2):
        flag = ctx.tensor(node.operand(2))
        flag = ctx.emit(op.reshape(flag, [1] * max(len(shape_of(value)), 1)))
        new = ctx.emit(op.where(flag, value, new))
    return [new, new]


def fused_matmul(ctx: Context, node: Node) -> Any:
    """alpha times the product, either operand's last two axes exchanged before."""
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        raise ValueError("transBatchA and transBatchB are not supported")
    pair = _operands(ctx, node, 2)
    for i, name in enumerate(("transA", "transB")):
        rank = len(shape_of(pair[i]))
        if int(node.attr(name, 0)) and rank > 1:
            order = [*range(rank - 2), rank - 1, rank - 2]
            pair[i] = ctx.emit(op.permute_dims(pair[i], order))
    made = ctx.emit(op.matmul(*pair))
    alpha = float(node.attr("alpha", 1.0))
    return made if alpha == 1 else ctx.emit(op.multiply(made, ctx.const(alpha)))


def scale(ctx: Context, node: Node) -> Any:
    """Scale: divided by a number, or where `scale_down` is 0 times it."""
    x, by = _operands(ctx, node, 2)
    return ctx.emit((op.divide if int(node.attr("scale_down", 0)) else op.multiply)(x, by))


def zero_gradient(ctx: Context, node: Node) -> Any:
    """Zeros of the second operand's shape."""
    like = ctx.tensor(node.operand(1))
    return ctx.full(shape_of(like), 0, ctx.options.dtype)


def reduce_sum(ctx: Context, node: Node) -> Any:
    """ReduceSumTraining: axes are the second operand."""
    x = ctx.tensor(node.operand(0))
    axes: Array = node.static(1, "axes")
    if not axes.size and int(node.attr("noop_with_empty_axes", 0)):
        return x
    over = [int(a) for a in axes.reshape(-1)] or None
    return ctx.emit(op.sum(x, over, keepdims=bool(node.attr("keepdims", 1))))


def inference_norm(ctx: Context, node: Node) -> Any:
    """BatchNormalization by running statistics; that of a batch is BatchNormInternal there."""
    if int(node.attr("training_mode", 0)):
        raise ValueError("training_mode=1 is not supported: in a gradient it is BatchNormInternal")
    x, factor, bias, mean, variance = _operands(ctx, node, 5)
    epsilon = float(node.attr("epsilon", 1e-5))
    return norms.evaluated(ctx, x, factor, bias, mean, variance, epsilon)


def dropout(ctx: Context, node: Node) -> Any:
    """Dropout of inference."""
    if node.has(2) and bool(np.any(node.static(2, "training_mode"))):
        raise ValueError("training_mode=1 is not supported: its mask is drawn within the graph")
    return ctx.tensor(node.operand(0))


def in_both_domains(rows: dict[str, Any]) -> dict[str, Any]:
    """Rows by operator, under ONNX's own domain too: ONNX Runtime registers some of its training
    operators, gradients of poolings among them, there."""
    return {**rows, **{f"com.microsoft::{name}": row for name, row in rows.items()}}


_ROWS: dict[str, Builder] = {
    "AveragePoolGrad": average_pool_grad,
    "BatchNormInternal": batch_norm,
    "BatchNormalization": inference_norm,
    "BatchNormalizationGrad": batch_norm_grad,
    "ConvGrad": conv_grad,
    "Dropout": dropout,
    "FusedMatMul": fused_matmul,
    "GeluGrad": _slope(gelu_slope),
    "InPlaceAccumulatorV2": accumulated,
    "LogSoftmaxGrad": _softmax_grad(True, True),
    "LogSoftmaxGrad_13": _softmax_grad(True, False),
    "MaxPoolGrad": max_pool_grad,
    "ReduceSumTraining": reduce_sum,
    "ReluGrad": _slope(_relu_slope),
    "Scale": scale,
    "SigmoidGrad": _slope(
        lambda dy, y: op.multiply(dy, op.multiply(y, op.subtract(const_like(1, y), y)))
    ),
    "SoftmaxCrossEntropyLoss": cross_entropy,
    "SoftmaxCrossEntropyLossGrad": cross_entropy_grad,
    "SoftmaxCrossEntropyLossInternal": cross_entropy,
    "SoftmaxCrossEntropyLossInternalGrad": cross_entropy_grad,
    "SoftmaxGrad": _softmax_grad(False, True),
    "SoftmaxGrad_13": _softmax_grad(False, False),
    "TanhGrad": _slope(
        lambda dy, y: op.multiply(dy, op.subtract(const_like(1, y), op.multiply(y, y)))
    ),
    "ZeroGradient": zero_gradient,
}
TRAINING_OPS: dict[str, Builder] = in_both_domains(_ROWS)
"""Operator of `com.microsoft`, or ONNX's own that is another thing within a gradient -> builder."""
