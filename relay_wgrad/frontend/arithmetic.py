"""Remainders, products and running sums along axes, in ops that have gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..ir import const_like
from .context import Context, shape_of
from .data_movement import cut
from .resampling import by_matrix

op = relax.op
_LONGEST = 4096  # of an axis that is summed up by a triangle


def remainder(ctx: Context, x: Any, y: Any, floor: bool) -> Any:
    """x - n y with n = x / y towards 0, or down, which has no gradient."""
    return ctx.emit(op.subtract(x, op.multiply(_quotient(ctx, x, y, floor), y)))


def floor_quotient(ctx: Context, x: Any, y: Any) -> Any:
    """x / y, down: as the remainder has it, not as the quotient is rounded; no gradient."""
    none = op.equal(y, const_like(0, y))
    plain = ctx.emit(op.grad.no_grad(ctx.emit(op.divide(x, y))))
    return ctx.emit(op.where(none, plain, _quotient(ctx, x, y, floor=True)))


def _quotient(ctx: Context, x: Any, y: Any, floor: bool) -> Any:
    rest = ctx.emit(op.mod(x, y))
    if floor:
        zero = const_like(0, rest)
        apart = op.less(op.multiply(op.sign(rest), op.sign(y)), zero)
        rest = ctx.emit(op.where(apart, op.add(rest, y), rest))
    return ctx.emit(op.grad.no_grad(ctx.emit(op.round(op.divide(op.subtract(x, rest), y)))))


def product(ctx: Context, x: Any, axes: list[int], keep: bool) -> Any:
    """The product over axes, half by half: right for any number of zeros, its gradient too."""
    shape = shape_of(x)
    axes = sorted(a % len(shape) for a in axes)
    rest = [a for a in range(len(shape)) if a not in axes]
    count = math.prod(shape[a] for a in axes)
    if not isinstance(count, int):
        raise ValueError("a product over the batch is not supported")
    x = ctx.emit(op.permute_dims(x, [*axes, *rest])) if axes + rest != sorted(axes + rest) else x
    x = ctx.emit(op.reshape(x, (count, *(shape[a] for a in rest))))
    while count > 1:
        half = count // 2
        parts = [cut(ctx, x, 0, 0, half), cut(ctx, x, 0, half, 2 * half)]
        both = ctx.emit(op.multiply(*parts))
        left = [cut(ctx, x, 0, 2 * half, count)] if count % 2 else []
        x = ctx.emit(op.concat([both, *left], 0)) if left else both
        count = half + len(left)
    made = [1 if a in axes else n for a, n in enumerate(shape) if keep or a not in axes]
    return ctx.emit(op.reshape(x, made))


def running_sum(
    ctx: Context, x: Any, axis: int, *, exclusive: bool = False, reverse: bool = False
) -> Any:
    """Sums of an axis' elements up to each, as a product with a triangle."""
    size = shape_of(x)[axis]
    if str(x.ty.dtype) in ("int32", "int64") and not exclusive and not reverse:
        return ctx.emit(op.cumsum(x, axis, str(x.ty.dtype)))
    if not isinstance(size, int) or size > _LONGEST or "float" not in str(x.ty.dtype):
        raise ValueError(f"of {size} {x.ty.dtype}: only floats, {_LONGEST} at most, are supported")
    triangle = np.tril(np.ones((size, size)), -1 if exclusive else 0)
    return by_matrix(ctx, x, axis, triangle.T if reverse else triangle)
