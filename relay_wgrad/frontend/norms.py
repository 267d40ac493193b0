"""Normalizations with plain arguments, which the front ends parse into.

Written out of operators that have gradients; tensors are (N, C, …).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax

from .context import Context, shape_of

op = relax.op


def standardized(ctx: Context, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    """x less its mean over its deviation, both over these axes."""
    centred = ctx.emit(op.subtract(x, ctx.emit(op.mean(x, list(axes), keepdims=True))))
    spread = ctx.emit(op.mean(op.multiply(centred, centred), list(axes), keepdims=True))
    shifted = op.add(spread, relax.const(epsilon, str(x.ty.dtype)))
    return ctx.emit(op.divide(centred, ctx.emit(op.sqrt(shifted))))


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
    out = ctx.emit(op.reshape(standardized(ctx, rows, [2], epsilon), shape))
    return affine(ctx, out, *(_column(ctx, v, shape) for v in (scale, bias)))


def affine(ctx: Context, x: Any, scale: Any, bias: Any) -> Any:
    """x times a scale plus a bias, each of which may be None; they broadcast."""
    if scale is not None:
        x = op.multiply(x, scale)
        x = x if bias is not None else ctx.emit(x)
    return x if bias is None else ctx.emit(op.add(x, bias))


def _column(ctx: Context, vector: Any, shape: Sequence[Any]) -> Any:
    """A number for each channel, beside a tensor of this shape."""
    if vector is None:
        return None
    if math.prod(shape_of(vector)) != shape[1]:
        raise ValueError(f"a vector {list(shape_of(vector))} does not fit {shape[1]} channels")
    return ctx.emit(op.reshape(vector, (1, shape[1], *(1,) * (len(shape) - 2))))


def evaluated(
    ctx: Context, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float
) -> Any:
    """Batch normalization by given statistics, one factor for each channel."""
    shape = shape_of(x)
    deviation = ctx.emit(op.sqrt(op.add(variance, ctx.const(epsilon))))
    factor = ctx.emit(op.divide(ctx.const(1.0) if scale is None else scale, deviation))
    centred = ctx.emit(op.subtract(x, _column(ctx, mean, shape)))
    return affine(ctx, centred, _column(ctx, factor, shape), _column(ctx, bias, shape))


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
    axes = [0, *range(2, len(shape))]
    check_statistics(ctx, shape, axes)
    mean = ctx.emit(op.mean(x, axes, keepdims=True))
    centred = ctx.emit(op.subtract(x, mean))
    spread = ctx.emit(op.mean(op.multiply(centred, centred), axes, keepdims=True))
    deviation = ctx.emit(op.sqrt(op.add(spread, ctx.const(epsilon))))
    normal = ctx.emit(op.divide(centred, deviation))
    for state, batch in zip(running, (mean, spread), strict=True):
        if state is not None:
            name, value, rate = state
            old = op.multiply(value, ctx.const(kept))
            fresh = op.multiply(op.reshape(batch, shape[1:2]), rate)
            ctx.states.append((name, ctx.emit(op.add(old, fresh))))
    return affine(ctx, normal, _column(ctx, scale, shape), _column(ctx, bias, shape))


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
