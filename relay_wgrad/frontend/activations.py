"""Activations and selections in ops that have gradients, their ties and kinks as in PyTorch.

A selection is written so that its gradient at a corner, and for NaN, follows from its comparisons:
`relax.where` passes it to what was chosen.  What is not chosen must be finite where it can be: its
gradient is 0 times that of a function, which is NaN where the function's is infinite.  NaN is told
by `isnan`: where kernels are fused TVM takes x == x for true.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..dtypes import FLOATS
from ..ops.ties import SELU_ALPHA, SELU_SCALE
from .context import Context, shape_of

op = relax.op


def where(ctx: Context, condition: Any, yes: Any, no: Any) -> Any:
    """A choice; numbers become constants."""
    yes, no = (ctx.const(v) if isinstance(v, (int, float)) else v for v in (yes, no))
    return ctx.emit(op.where(condition, yes, no))


def clamp(ctx: Context, x: Any, low: float | None, high: float | None) -> Any:
    """x between bounds: its gradient passes at them, as `torch.clamp`'s; None: no bound."""
    bound: Any = ctx.const(math.nan)
    inside = None
    if high is not None:
        top = ctx.const(high)
        bound = where(ctx, op.greater(x, top), high, bound)
        inside = op.less_equal(x, top)
    if low is not None:
        bottom = ctx.const(low)
        bound = where(ctx, op.less(x, bottom), low, bound)
        above = op.greater_equal(x, bottom)
        inside = above if inside is None else op.logical_and(above, inside)
    if low is not None and high is not None and low > high:  # PyTorch: then all are `high`
        return ctx.emit(op.multiply(op.zeros_like(x), ctx.const(high)))
    return x if inside is None else where(ctx, ctx.emit(inside), x, bound)


def hardtanh(ctx: Context, x: Any, low: float, high: float) -> Any:
    """x between bounds: its gradient does not pass at them, as ReLU6's and hardtanh's."""
    below = where(ctx, op.greater_equal(x, ctx.const(high)), high, x)
    return where(ctx, op.less_equal(x, ctx.const(low)), low, below)


def hard_sigmoid(ctx: Context, x: Any, alpha: float, beta: float) -> Any:
    """alpha x + beta between 0 and 1: the gradient is 0 at both, and for NaN."""
    line = ctx.emit(op.add(op.multiply(x, ctx.const(alpha)), ctx.const(beta)))
    # A compiler may round the line once or twice, so its corners are told by x, as PyTorch does;
    # files have alpha and beta in float32, of which corners at -3 and 3 come back exactly.
    of, low, high = line, 0.0, 1.0
    if alpha > 0:
        of, low, high = x, float(np.float32(-beta / alpha)), float(np.float32((1 - beta) / alpha))
    bottom, top = ctx.const(low), ctx.const(high)
    bound = where(ctx, op.greater_equal(of, top), 1.0, math.nan)
    bound = where(ctx, op.less_equal(of, bottom), 0.0, bound)
    return where(ctx, op.logical_and(op.greater(of, bottom), op.less(of, top)), line, bound)


def hard_swish(ctx: Context, x: Any) -> Any:
    """x times (x + 3) / 6 between -3 and 3: the gradient is 0 at -3, and 1 at 3."""
    below = ctx.emit(op.less_equal(x, ctx.const(-3.0)))
    above = ctx.emit(op.greater_equal(x, ctx.const(3.0)))
    z = where(ctx, above, 0.0, where(ctx, below, 0.0, x))
    curve = op.multiply(op.multiply(z, op.add(z, ctx.const(3.0))), ctx.const(1 / 6))
    return where(ctx, below, 0.0, where(ctx, above, x, curve))


def leaky_relu(ctx: Context, x: Any, slope: float) -> Any:
    """x, or slope x where x is not above 0."""
    positive = op.greater(x, ctx.const(0.0))
    return where(ctx, positive, x, op.multiply(x, ctx.const(slope)))


def prelu(ctx: Context, x: Any, slope: Any) -> Any:
    """As `leaky_relu`, with a slope for each channel (axis 1), or one for all."""
    column = [1] * len(shape_of(x))
    if len(column) > 1:
        column[1] = shape_of(slope)[0]
    return sloped(ctx, x, ctx.emit(op.reshape(slope, column)))


def sloped(ctx: Context, x: Any, slope: Any) -> Any:
    """x, or slope x where x is not above 0; the slope is broadcast to x."""
    positive = ctx.emit(op.greater(x, ctx.const(0.0)))
    return where(ctx, positive, x, op.multiply(slope, where(ctx, positive, 0.0, x)))


def elu(ctx: Context, x: Any, alpha: float = 1.0, scale: float = 1.0, steep: float = 1.0) -> Any:
    """scale x, or scale alpha (exp(steep x) - 1) where x <= 0: that side's slope at 0, no bend."""
    negative = ctx.emit(op.less(x, ctx.const(0.0)))
    z = where(ctx, negative, x, 0.0)
    z = z if steep == 1.0 else op.multiply(z, ctx.const(steep))
    curve = op.multiply(op.subtract(op.exp(z), ctx.const(1.0)), ctx.const(scale * alpha))
    slope: Any = ctx.const(scale)
    if alpha * steep != 1.0:
        slope = where(ctx, op.less_equal(x, ctx.const(0.0)), scale * alpha * steep, scale)
    return where(ctx, negative, curve, op.multiply(x, slope))


def selu(ctx: Context, x: Any) -> Any:
    """ELU with the two constants of SELU."""
    return elu(ctx, x, SELU_ALPHA, SELU_SCALE)


def celu(ctx: Context, x: Any, alpha: float) -> Any:
    """x, or alpha (exp(x / alpha) - 1) where x <= 0."""
    return elu(ctx, x, alpha, 1.0, 1.0 / alpha)


def softplus(ctx: Context, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + exp(beta x)) / beta, and x where beta x is above the threshold; at it, no bend."""
    scaled = x if beta == 1.0 else ctx.emit(op.multiply(x, ctx.const(beta)))
    linear = ctx.emit(op.greater(scaled, ctx.const(threshold)))
    straight = ctx.emit(op.greater_equal(scaled, ctx.const(threshold)))
    z = where(ctx, straight, 0.0, scaled)
    curve: Any = op.log(op.add(op.exp(z), ctx.const(1.0)))
    rest = math.exp(-threshold)  # the tangent at the threshold: only its slope is used
    step = op.multiply(op.subtract(scaled, ctx.const(threshold)), ctx.const(1 / (1 + rest)))
    tangent = op.add(step, ctx.const(threshold + math.log1p(rest)))
    curve = where(ctx, straight, tangent, curve)
    return where(ctx, linear, x, curve if beta == 1.0 else op.divide(curve, ctx.const(beta)))


def mish(ctx: Context, x: Any) -> Any:
    """x tanh(softplus(x))."""
    return ctx.emit(op.multiply(x, op.tanh(softplus(ctx, x))))


def softsign(ctx: Context, x: Any) -> Any:
    """x / (1 + |x|)."""
    return ctx.emit(op.divide(x, op.add(op.abs(x), ctx.const(1.0))))


def log_sigmoid(ctx: Context, x: Any) -> Any:
    """log(sigmoid(x)), of exponentials of what is not positive."""
    negative = ctx.emit(op.less(x, ctx.const(0.0)))
    small = where(ctx, negative, x, 0.0)
    large = where(ctx, negative, 0.0, op.negative(x))
    left = op.subtract(small, op.log(op.add(op.exp(small), ctx.const(1.0))))
    right = op.negative(op.log(op.add(op.exp(large), ctx.const(1.0))))
    return where(ctx, negative, left, right)


def threshold(ctx: Context, x: Any, limit: float, value: float) -> Any:
    """`value` where x <= limit."""
    return where(ctx, op.less_equal(x, ctx.const(limit)), value, x)


def extremum(ctx: Context, x: Any, axes: list[int] | None, keep: bool, largest: bool) -> Any:
    """amax and amin: equal elements share the gradient; NaN passes, and is its row's gradient.

    TVM's reductions drop NaN, so one more tells where there is one.
    """
    out = ctx.emit((op.max if largest else op.min)(x, axes, keepdims=keep))
    if str(x.ty.dtype) not in FLOATS:
        return out
    lost = op.sum(where(ctx, op.isnan(x), math.nan, 0.0), axes, keepdims=keep)
    return ctx.emit(op.multiply(out, op.add(lost, ctx.const(1.0))))


def global_extremum(ctx: Context, x: Any, largest: bool) -> Any:
    """max() and min() of all elements: equal ones share the gradient, NaN where there is one."""
    reduction = op.max if largest else op.min
    if str(x.ty.dtype) not in FLOATS:
        return ctx.emit(reduction(x))
    stray = ctx.emit(op.isnan(x))
    best = ctx.emit(reduction(where(ctx, stray, -math.inf if largest else math.inf, x)))
    count = ctx.emit(op.sum(where(ctx, stray, 1.0, 0.0)))
    lost = ctx.emit(op.greater(count, ctx.const(0.0)))
    strays = op.divide(op.sum(where(ctx, stray, x, 0.0)), where(ctx, lost, count, 1.0))
    return where(ctx, lost, strays, best)


def norm(ctx: Context, x: Any, axes: list[int], keep: bool) -> Any:
    """The root of the sum of squares; its gradient at 0 is 0."""
    squares = ctx.emit(op.sum(op.multiply(x, x), axes, keepdims=keep))
    zero = ctx.emit(op.equal(squares, ctx.const(0.0)))
    return where(ctx, zero, 0.0, op.sqrt(where(ctx, zero, 1.0, squares)))


def rounded_corner(ctx: Context, x: Any, limit: float, huber: bool) -> Any:
    """x^2 / 2 below the limit and limit (|x| - limit / 2) from it on; over the limit if not huber.

    Slopes agree at the limit; the second derivative there is the linear part's, 0.
    """
    size = ctx.emit(op.abs(x))
    if limit == 0.0 and not huber:
        return size
    inside = ctx.emit(op.logical_not(op.greater_equal(size, ctx.const(limit))))  # NaN: the square
    z = where(ctx, inside, x, 0.0)
    curve = op.multiply(op.multiply(z, z), ctx.const(0.5 if huber else 0.5 / limit))
    line = op.subtract(size, ctx.const(limit / 2))
    if huber:
        line = op.multiply(line, ctx.const(limit))
    return where(ctx, inside, curve, line)


def selected(ctx: Context, x: Any, axis: int, keep: bool, largest: bool) -> tuple[Any, Any]:
    """max and min along an axis with the index of the first of equal ones, or of the first NaN: it
    gets the gradient."""
    shape = shape_of(x)
    if not shape:
        return x, ctx.emit(op.zeros((), "int64"))
    axis %= len(shape)
    index = ctx.emit((op.argmax if largest else op.argmin)(x, axis, keepdims=True))
    # Where all are infinities, TVM's search finds -1.
    index = ctx.emit(op.maximum(index, relax.const(0, "int64")))
    if str(x.ty.dtype) in FLOATS:
        lost = where(ctx, op.isnan(x), 1.0, 0.0)
        some = op.greater(op.max(lost, axis, keepdims=True), ctx.const(0.0))
        index = ctx.emit(op.where(some, op.argmax(lost, axis, keepdims=True), index))
    places = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    chosen = op.equal(index, relax.const(places.astype("int64"), "int64"))
    value = ctx.emit(op.sum(where(ctx, chosen, x, 0.0), [axis], keepdims=keep))
    if not keep:
        index = ctx.emit(op.reshape(index, [s for a, s in enumerate(shape) if a != axis]))
    return value, index
