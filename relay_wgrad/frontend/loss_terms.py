"""Losses in ops that have gradients of any order, with PyTorch's values and reductions.

Sums go over the inner axes first: a count of pixels stays exact in float32, and so large a sum
loses no more than each part of it does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..ir import const_like
from . import activations as act
from .context import Context, shape_of
from .sizes import counted, number

op = relax.op

REDUCTIONS = ("none", "mean", "sum")
"""By ATen's numbers."""


def reduced(ctx: Context, each: Any, reduction: str) -> Any:
    """All elements of a loss as they are, their mean or their sum."""
    if reduction == "none":
        return each
    sum_ = total(ctx, each)
    if reduction == "sum":
        return sum_
    count = number(shape_of(each), str(each.ty.dtype), ctx.emit)
    return ctx.emit(op.divide(sum_, count))


def total(ctx: Context, x: Any) -> Any:
    """The sum of all elements, of the first axis last."""
    rank = len(shape_of(x))
    if rank > 1:
        x = ctx.emit(op.sum(x, list(range(1, rank))))
    return ctx.emit(op.sum(x)) if rank else x


def squared(ctx: Context, a: Any, b: Any) -> Any:
    """(a - b)^2, of each element."""
    error = ctx.emit(op.subtract(a, b))
    return ctx.emit(op.multiply(error, error))


def absolute(ctx: Context, a: Any, b: Any) -> Any:
    """|a - b|, of each element."""
    return ctx.emit(op.abs(ctx.emit(op.subtract(a, b))))


def rounded(ctx: Context, a: Any, b: Any, limit: float, huber: bool) -> Any:
    """Half the square of errors below a limit, beyond it linear: SmoothL1 over its limit, Huber."""
    return act.rounded_corner(ctx, ctx.emit(op.subtract(a, b)), limit, huber)


def bce_with_logits(
    ctx: Context, x: Any, target: Any, weight: Any = None, pos_weight: Any = None
) -> Any:
    """-w (p t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))), of each element, finite for any x."""
    factor = target
    if pos_weight is not None:
        factor = op.multiply(target, op.subtract(pos_weight, const_like(1.0, x)))
    ones = const_like(1.0, x)
    logs = act.log_sigmoid(ctx, x)
    rest = ctx.emit(op.multiply(op.subtract(ones, target), x))
    if pos_weight is None:
        each = ctx.emit(op.subtract(rest, logs))
    else:
        factor = ctx.emit(op.add(factor, ones))
        each = ctx.emit(op.subtract(rest, op.multiply(factor, logs)))
    return each if weight is None else ctx.emit(op.multiply(each, weight))


def class_weights(
    ctx: Context, scores: Any, labels: Any, weight: Any, ignored: int | None
) -> tuple[Any, Any]:
    """(each class's weight where it is the label, else 0; which labels count, None: all).

    Of scores (N, C, d…), with int64 labels (N, d…) and a weight of each class, (C,), or None;
    `ignored` is a label that counts for nothing.  What counts has an axis of size 1 for classes.
    """
    shape = shape_of(scores)
    axis = 1 if len(shape) > 1 else 0
    column = [shape[axis] if a == axis else 1 for a in range(len(shape))]
    names = relax.const(np.arange(shape[axis]).reshape(column), "int64")
    labels = ctx.emit(op.expand_dims(labels, axis))
    chosen, counts = ctx.emit(op.equal(labels, names)), None
    if ignored is not None:
        counts = ctx.emit(op.not_equal(labels, relax.const(ignored, "int64")))
        chosen = ctx.emit(op.logical_and(chosen, counts))
    each = ctx.const(1.0) if weight is None else ctx.emit(op.reshape(weight, column))
    return ctx.emit(op.where(chosen, each, ctx.const(0.0))), counts


def cross_entropy(
    ctx: Context,
    logs: Any,
    labels: Any,
    *,
    reduction: str = "mean",
    weight: Any = None,
    ignored: int | None = None,
    smoothing: float = 0.0,
) -> Any:
    """The cross-entropy of log-probabilities (N, C, d…) with int64 labels (N, d…).

    weight : of each class, (C,).  The mean is over the sum of the labels' weights.
    ignored : a label that counts for nothing; where all are, the mean is 0 / 0.
    smoothing : the part of the target that is spread over all classes.

    Any other label that is no class makes the loss NaN; no label is an index into memory.
    """
    shape = shape_of(logs)
    axis = 1 if len(shape) > 1 else 0
    classes = shape[axis]
    column = [classes if a == axis else 1 for a in range(len(shape))]
    names = ctx.emit(op.reshape(counted(classes), column))
    zero = const_like(0.0, logs)
    chosen = ctx.emit(op.equal(ctx.emit(op.expand_dims(labels, axis)), names))
    weights = None if weight is None else ctx.emit(op.reshape(op.grad.no_grad(weight), column))
    weighted = logs if weights is None else ctx.emit(op.multiply(logs, weights))
    each = ctx.emit(op.negative(op.sum(op.where(chosen, weighted, zero), [axis])))
    if smoothing:
        spread = ctx.emit(
            op.multiply(op.sum(weighted, [axis]), _share(ctx, -smoothing, classes, logs))
        )
        each = ctx.emit(op.add(op.multiply(each, const_like(1.0 - smoothing, logs)), spread))
    low = op.less(labels, relax.const(0, "int64"))
    high = op.greater_equal(labels, number([classes], "int64", ctx.emit))
    wrong = ctx.emit(op.logical_or(low, high))
    counts = None
    if ignored is not None:
        counts = ctx.emit(op.not_equal(labels, relax.const(ignored, "int64")))
        wrong = ctx.emit(op.logical_and(wrong, counts))
        each = ctx.emit(op.where(counts, each, zero))
    each = ctx.emit(op.where(wrong, const_like(math.nan, logs), each))
    if reduction != "mean" or (counts is None and weights is None):
        return reduced(ctx, each, reduction)
    if weights is None:
        share = op.where(counts, const_like(1.0, logs), zero)
    else:
        share = op.sum(op.where(chosen, op.broadcast_to(weights, shape), zero), [axis])
        share = share if counts is None else op.where(counts, share, zero)
    whole = ctx.emit(op.grad.no_grad(total(ctx, ctx.emit(share))))
    return ctx.emit(op.divide(total(ctx, each), whole))


def cross_entropy_of(
    ctx: Context,
    logs: Any,
    target: Any,
    *,
    reduction: str = "mean",
    weight: Any = None,
    smoothing: float = 0.0,
) -> Any:
    """The same with a target of probabilities, of the logits' shape; the mean is over N, d…."""
    shape = shape_of(logs)
    axis = 1 if len(shape) > 1 else 0
    if smoothing:
        target = ctx.emit(op.multiply(target, const_like(1.0 - smoothing, logs)))
        target = ctx.emit(op.add(target, _share(ctx, smoothing, shape[axis], logs)))
    if weight is not None:
        column = [shape[axis] if a == axis else 1 for a in range(len(shape))]
        target = ctx.emit(op.multiply(target, op.reshape(weight, column)))
    each = ctx.emit(op.negative(op.sum(op.multiply(logs, target), [axis])))
    return reduced(ctx, each, reduction)


def _share(ctx: Context, value: float, count: Any, like: Any) -> Any:
    """A number by a size."""
    if isinstance(count, int):
        return const_like(value / count, like)
    size = number([count], str(like.ty.dtype), ctx.emit)
    return ctx.emit(op.divide(const_like(value, like), size))
