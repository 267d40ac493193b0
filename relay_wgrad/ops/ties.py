"""Gradients of activations and selections, at their ties and kinks as PyTorch's autograd has them.

Upstream's rules let ReLU's gradient pass at 0, give abs the slope 1 there and one operand of a
maximum all of an equal pair's gradient; every framework does otherwise, and networks whose residual
branches start at zero have such ties at half of all pixels.  Here, with g the cotangent:

    relu         0 where x <= 0          abs       g sign(x), so 0 at 0
    maximum, minimum                     halves of g where the operands are equal
    clip         g from bound to bound, both included (`torch.clamp`)
    max, min     equal shares of g for all that are equal (`torch.amax`)
    leakyrelu, prelu, selu               the slope of the negative side at 0
    power        0 by x where the exponent is 0, 0 by the exponent where x is 0

Comparisons with NaN are false, so NaN passes or not as it does in PyTorch.  ReLU's mask is
`less_equal(relu(x), 0)`; upstream's and Relay's `less(x, 0)` is another function, and stays one.
All rules are said in ops that have gradients themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..dtypes import wide_of
from ..ir import const_like

op = relax.op
Partials = list[Any]
Rule = Callable[[Any, relax.Call, relax.Var, Any], Partials]
no_grad = relax.op.grad.no_grad

# As torch.nn.functional.selu has them.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def fit(partial: relax.Expr, operand: relax.Expr, result: relax.Expr) -> relax.Expr:
    """A partial of the result's shape, summed to the operand's where that was broadcast."""
    shape, wanted = result.ty.shape, operand.ty.shape
    same = len(shape.values) == len(wanted.values) and all(
        tvm.sym.Analyzer().can_prove_equal(a, b)
        for a, b in zip(shape.values, wanted.values, strict=True)
    )
    return partial if same else op.collapse_sum_to(partial, wanted)


def relu(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """y = max(x, 0): nothing passes where y <= 0, which is where x is; NaN does.

    y is kept anyway for what reads it, and a kernel that makes y need not write x.
    """
    return [relu_slope(ct, var)]


def relu_slope(ct: Any, y: Any) -> Any:
    """ct, but 0 where y <= 0: NaN passes."""
    zero = const_like(0, y)
    return op.where(op.less_equal(y, zero), zero, ct)


def abs_(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """y = |x|: 0 at 0, and for NaN."""
    x = call.args[0]
    zero, one, minus = (const_like(v, x) for v in (0, 1, -1))
    positive = op.where(op.greater(x, zero), one, zero)
    return [op.multiply(ct, op.where(op.less(x, zero), minus, positive))]


def _extremum(loses: Callable[[Any, Any], Any]) -> Rule:
    """Of maximum and minimum: `loses(a, b)` where b alone is the result."""

    def rule(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
        """Each operand gets the gradient where it is the result, half of it where both are."""
        x, y = call.args
        zero = const_like(0, var)
        half = op.multiply(ct, const_like(0.5, var))
        shared = ctx.emit(op.where(op.equal(x, y), half, ct))
        return [fit(op.where(loses(a, b), zero, shared), a, var) for a, b in ((x, y), (y, x))]

    return rule


def where(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """To what was chosen, summed where that was broadcast: upstream's rule forgets the sum."""
    condition, yes, no = call.args
    zero = const_like(0, var)
    by_yes, by_no = op.where(condition, ct, zero), op.where(condition, zero, ct)
    return [no_grad(condition), fit(by_yes, yes, var), fit(by_no, no, var)]


def clip(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """Passes between the bounds, and at them; NaN does not."""
    x, low, high = call.args
    inside = op.logical_and(
        op.greater_equal(x, const_like(float(low), x)), op.less_equal(x, const_like(float(high), x))
    )
    return [op.where(inside, ct, const_like(0, x)), no_grad(low), no_grad(high)]


def reduced(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """max and min along axes: equal shares for all that are equal to the result."""
    x, axis = call.args[0], call.attrs.axis
    axes = list(range(x.ty.ndim)) if axis is None else [int(a) % x.ty.ndim for a in axis]
    if not call.attrs.keepdims and axes:
        var, ct = (ctx.emit(op.expand_dims(v, sorted(axes))) for v in (var, ct))
    own = str(x.ty.dtype)
    dtype = wide_of(own)  # of a count, which need not be a float16
    chosen = ctx.emit(op.astype(op.equal(x, var), dtype))
    if dtype != own:
        ct = op.astype(ct, dtype)
    made = op.multiply(op.divide(ct, op.sum(chosen, axes, keepdims=True)), chosen)
    return [made if dtype == own else op.astype(made, own)]


def leakyrelu(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """alpha where x is not above 0."""
    x = call.args[0]
    slope = op.multiply(ct, const_like(float(call.attrs.alpha), x))
    return [op.where(op.greater(x, const_like(0, x)), ct, slope)]


def prelu(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """As `leakyrelu`, with a slope for each channel, which gets the sum of x where it is used."""
    x, alpha = call.args
    axis = int(call.attrs.axis) % x.ty.ndim
    column = [1] * x.ty.ndim
    column[axis] = alpha.ty.shape.values[0]
    zero = const_like(0, x)
    positive = ctx.emit(op.greater(x, zero))
    slope = op.multiply(ct, op.reshape(alpha, column))
    used = op.multiply(op.where(positive, zero, ct), op.where(positive, zero, x))
    summed = op.sum(used, [a for a in range(x.ty.ndim) if a != axis])
    if int(column[axis]) != int(x.ty.shape.values[axis]):
        summed = op.sum(summed, keepdims=True)  # one slope for all channels
    return [op.where(positive, ct, slope), op.reshape(summed, alpha.ty.shape)]


def selu(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """scale alpha exp(x) where x <= 0; of that, at 0 nothing."""
    x = call.args[0]
    zero = const_like(0, x)
    bent = op.exp(op.where(op.less(x, zero), x, zero))
    rise = op.multiply(bent, const_like(SELU_SCALE * SELU_ALPHA, x))
    return [op.multiply(ct, op.where(op.less_equal(x, zero), rise, const_like(SELU_SCALE, x)))]


def softplus(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """sigmoid(beta x), and 1 where beta x is above the threshold; of that, at it nothing."""
    x = call.args[0]
    threshold = const_like(float(call.attrs.threshold), x)
    scaled = ctx.emit(op.multiply(x, const_like(float(call.attrs.beta), x)))
    bent = op.where(op.greater_equal(scaled, threshold), threshold, scaled)
    return [op.where(op.greater(scaled, threshold), ct, op.multiply(ct, op.sigmoid(bent)))]


def gelu(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """The normal distribution's function, and x times its density."""
    return [gelu_slope(ct, call.args[0])]


def gelu_slope(ct: Any, x: Any) -> Any:
    """ct times the derivative of x Φ(x)."""
    below = op.add(const_like(1, x), op.erf(op.multiply(x, const_like(math.sqrt(0.5), x))))
    density = op.exp(op.multiply(op.multiply(x, x), const_like(-0.5, x)))
    scaled = op.multiply(op.multiply(x, density), const_like(1 / math.sqrt(2 * math.pi), x))
    return op.multiply(ct, op.add(op.multiply(below, const_like(0.5, x)), scaled))


def gelu_tanh(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """Of x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    x = call.args[0]
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    square = ctx.emit(op.multiply(x, x))
    factor = op.add(op.multiply(square, const_like(root * cubic, x)), const_like(root, x))
    bend = ctx.emit(op.tanh(op.multiply(x, factor)))
    slope = op.add(op.multiply(square, const_like(3 * root * cubic, x)), const_like(root, x))
    steep = op.multiply(op.subtract(const_like(1, x), op.multiply(bend, bend)), slope)
    total = op.add(op.add(const_like(1, x), bend), op.multiply(x, steep))
    return [op.multiply(ct, op.multiply(total, const_like(0.5, x)))]


def erf(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """2 / sqrt(pi) exp(-x^2)."""
    x = call.args[0]
    density = op.exp(op.negative(op.multiply(x, x)))
    return [op.multiply(ct, op.multiply(density, const_like(2 / math.sqrt(math.pi), x)))]


def square(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """2 x."""
    x = call.args[0]
    return [op.multiply(ct, op.multiply(x, const_like(2, x)))]


def rsqrt(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """-y^3 / 2."""
    cube = op.multiply(var, op.multiply(var, var))
    return [op.multiply(op.multiply(ct, const_like(-0.5, var)), cube)]


def power(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """x^y: 0 by x where y is 0, and 0 by y where x is 0 and y is not negative."""
    x, y = call.args
    zero, one = const_like(0, y), const_like(1, y)
    if isinstance(y, tvm.ir.Constant):
        value = y.value.numpy()
        less = relax.const(np.where(value == 0, 0, value - 1), str(y.ty.dtype))
    else:
        less = op.where(op.equal(y, zero), zero, op.subtract(y, one))
    by_x = op.multiply(op.multiply(ct, y), op.power(x, less))
    origin = op.logical_and(op.equal(x, const_like(0, x)), op.greater_equal(y, zero))
    by_y = op.multiply(op.multiply(ct, var), op.log(op.where(origin, const_like(1, x), x)))
    return [fit(by_x, x, var), fit(by_y, y, var)]


def constant(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """Constant wherever it has a derivative, or no function of a float: nothing passes."""
    return [no_grad(arg) for arg in call.args]


_CONSTANT = """
    arange argmax argmin argsort bitwise_and bitwise_not bitwise_or bitwise_xor ceil eye eye_like
    floor hamming_window isfinite isinf isnan logical_and logical_not logical_or
    logical_xor nonzero one_hot round shape_of shape_to_tensor sign trunc"""

GRADIENTS: dict[str, Rule] = {
    "relax.nn.relu": relu,
    "relax.abs": abs_,
    "relax.maximum": _extremum(op.less),
    "relax.minimum": _extremum(op.greater),
    "relax.where": where,
    "relax.clip": clip,
    "relax.max": reduced,
    "relax.min": reduced,
    "relax.nn.leakyrelu": leakyrelu,
    "relax.nn.prelu": prelu,
    "relax.nn.selu": selu,
    "relax.nn.softplus": softplus,
    "relax.nn.gelu": gelu,
    "relax.nn.gelu_tanh": gelu_tanh,
    "relax.erf": erf,
    "relax.square": square,
    "relax.rsqrt": rsqrt,
    "relax.power": power,
    **{f"relax.{name}": constant for name in _CONSTANT.split()},
}
"""Op -> its gradient, in place of upstream's where there is one."""
