"""Normalizations with plain arguments, which the front ends parse into.

Written out of operators that have gradients; tensors are (N, C, …).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..ops.moments import deviation, moments, standardized
from .context import Context, shape_of

op = relax.op


def rms_norm(ctx: Context, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    """x over the root of its mean square over these axes."""
    square = ctx.emit(op.mean(op.multiply(x, x), list(axes), keepdims=True))
    return ctx.emit(op.divide(x, ctx.emit(op.sqrt(op.add(square, ctx.const(epsilon))))))


def in_groups(ctx: Context, x: Any, groups: int, epsilon: float, scale: Any, bias: Any) -> Any:
    """Each group of an image's channels standardized by itself; scale and bias (C,), or None.

    Raises ValueError for groups that do not divide the channels.
    """
    shape = shape_of(x)
    if groups < 1 or shape[1] % groups:
        raise ValueError(f"{groups} groups do not divide the channels of {list(shape)}")
    rows = ctx.emit(op.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups)))
    out = ctx.emit(op.reshape(standardized(ctx.emit, rows, [2], epsilon), shape))
    return affine(ctx, out, *(column(ctx, v, shape) for v in (scale, bias)))


def affine(ctx: Context, x: Any, scale: Any, bias: Any) -> Any:
    """x times a scale plus a bias, each of which may be None; they broadcast."""
    if scale is not None:
        x = op.multiply(x, scale)
        x = x if bias is not None else ctx.emit(x)
    return x if bias is None else ctx.emit(op.add(x, bias))


def column(ctx: Context, vector: Any, shape: Sequence[Any]) -> Any:
    """A number for each channel, beside a tensor of this shape."""
    if vector is None:
        return None
    if math.prod(shape_of(vector)) != shape[1]:
        raise ValueError(f"a vector {list(shape_of(vector))} does not fit {shape[1]} channels")
    return ctx.emit(op.reshape(vector, (1, shape[1], *(1,) * (len(shape) - 2))))


def batch_axes(shape: Sequence[Any]) -> list[int]:
    """All axes but the channels', axis 1."""
    return [a for a in range(len(shape)) if a != 1]


def evaluated(
    ctx: Context, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float
) -> Any:
    """Batch normalization by given statistics, one factor for each channel."""
    shape = shape_of(x)
    root = deviation(ctx.emit, variance, epsilon)
    factor = ctx.emit(op.divide(ctx.const(1.0) if scale is None else scale, root))
    centred = ctx.emit(op.subtract(x, column(ctx, mean, shape)))
    return affine(ctx, centred, column(ctx, factor, shape), column(ctx, bias, shape))


def updated(ctx: Context, running: Any, batch: Any, kept: float, rate: Any) -> Any:
    """A running statistic (C,) after a batch's: running·kept + batch·rate."""
    old, fresh = op.multiply(running, ctx.const(kept)), op.reshape(batch, shape_of(running))
    return ctx.emit(op.add(old, op.multiply(fresh, rate)))


def trained(
    ctx: Context, x: Any, scale: Any, bias: Any, epsilon: float,
    kept: float = 0.0, running: Sequence[tuple[str, Any, Any] | None] = (None, None),
) -> Any:  # fmt: skip
    """Batch normalization by the batch's mean and population variance.

    running : (name, value, rate) of the running mean and variance, which become
        value·kept + batch·rate; None of one that stays.

    Raises ValueError for the statistics of one value.
    """
    shape = shape_of(x)
    check_statistics(ctx, shape, batch_axes(shape))
    mean, centred, variance = moments(ctx.emit, x, batch_axes(shape))
    normal = ctx.emit(op.divide(centred, deviation(ctx.emit, variance, epsilon)))
    for state, batch in zip(running, (mean, variance), strict=True):
        if state is not None:
            name, value, rate = state
            ctx.states.append((name, updated(ctx, value, batch, kept, rate)))
    return affine(ctx, normal, column(ctx, scale, shape), column(ctx, bias, shape))


def with_statistics(
    ctx: Context, x: Any, scale: Any, bias: Any, epsilon: float, given: Sequence[Any] = ()
) -> tuple[Any, Any, Any, Any]:
    """Batch normalization in a graph that has its gradient too: (y, mean, 1 / deviation, variance).

    given : mean and variance (C,); without them they are the batch's.  The results' are (C,).
    """
    shape = shape_of(x)
    if given:
        mean, variance = (column(ctx, v, shape) for v in given)
        centred = ctx.emit(op.subtract(x, mean))
    else:
        mean, centred, variance = moments(ctx.emit, x, batch_axes(shape))
    inverse = ctx.emit(op.divide(ctx.const(1.0), deviation(ctx.emit, variance, epsilon)))
    y = ctx.emit(op.multiply(centred, inverse))
    y = affine(ctx, y, column(ctx, scale, shape), column(ctx, bias, shape))
    flat = (ctx.emit(op.reshape(v, shape[1:2])) for v in (mean, inverse, variance))
    return y, *flat


def batch_gradients(
    ctx: Context, dy: Any, x: Any, scale: Any, mean: Any, inverse: Any, *, trained: bool = True
) -> tuple[Any, Any, Any]:
    """The gradients of a batch normalization by x, by scale and by bias.

    mean, inverse : what it normalized by, and 1 / deviation, (C,); trained : they are the batch's,
        and so depend on x.
    """
    shape = shape_of(x)
    axes, rstd = batch_axes(shape), column(ctx, inverse, shape)
    normal = ctx.emit(op.multiply(op.subtract(x, column(ctx, mean, shape)), rstd))
    of_bias = ctx.emit(op.sum(dy, axes, keepdims=True))
    of_scale = ctx.emit(op.sum(op.multiply(dy, normal), axes, keepdims=True))
    of_x = dy
    if trained:
        count = ctx.const(1 / math.prod(shape[a] for a in axes))
        along = ctx.emit(op.multiply(normal, ctx.emit(op.multiply(of_scale, count))))
        level = ctx.emit(op.multiply(of_bias, count))
        of_x = ctx.emit(op.subtract(op.subtract(dy, level), along))
    factor = rstd if scale is None else ctx.emit(op.multiply(rstd, column(ctx, scale, shape)))
    flat = (ctx.emit(op.reshape(v, shape[1:2])) for v in (of_scale, of_bias))
    return ctx.emit(op.multiply(of_x, factor)), *flat


def check_statistics(ctx: Context, shape: Sequence[Any], axes: Sequence[int]) -> None:
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
