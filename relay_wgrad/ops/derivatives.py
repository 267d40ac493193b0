"""Gradients of trigonometric and hyperbolic functions and their inverses, which upstream lacks.

With g the cotangent and y the result:

    tan     g (1 + y^2)     atan    g / (1 + x^2)             atan2(y, x)   by y  g x / (x^2 + y^2)
    sinh    g cosh(x)       asinh   g / sqrt(1 + x^2)                       by x -g y / (x^2 + y^2)
    cosh    g sinh(x)       acosh   g / sqrt(x^2 - 1)
    asin    g / sqrt(1 - x^2), acos minus that    atanh   g / (1 - x^2)

All rules are said in ops that have gradients themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..ir import const_like
from .ties import Partials, Rule, fit

op = relax.op


def _by(slope: Callable[[Any, Any], Any]) -> Rule:
    """g times a slope, of x and the result."""

    def rule(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
        """The cotangent times the slope."""
        return [op.multiply(ct, slope(call.args[0], var))]

    return rule


def _over(divisor: Callable[[Any], Any]) -> Rule:
    """g over a function of x."""

    def rule(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
        """The cotangent over the function."""
        return [op.divide(ct, divisor(call.args[0]))]

    return rule


def _one_minus_square(x: Any) -> Any:
    """1 - x^2 as a product: near 1 the square of x would lose what is left."""
    return op.multiply(op.subtract(const_like(1, x), x), op.add(const_like(1, x), x))


def _above(x: Any) -> Any:
    return op.multiply(op.subtract(x, const_like(1, x)), op.add(x, const_like(1, x)))


def _plus(x: Any) -> Any:
    return op.add(const_like(1, x), op.multiply(x, x))


def atan2(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """The angle of (x, y), y first; 0 at the origin, as autograd's."""
    y, x = call.args
    square = ctx.emit(op.add(op.multiply(x, x), op.multiply(y, y)))
    zero = const_like(0, var)
    origin = ctx.emit(op.equal(square, zero))
    square = op.where(origin, const_like(1, var), square)
    share = ctx.emit(op.where(origin, zero, op.divide(ct, square)))
    return [fit(op.multiply(share, x), y, var), fit(op.negative(op.multiply(share, y)), x, var)]


GRADIENTS: dict[str, Rule] = {
    "relax.acos": _over(lambda x: op.negative(op.sqrt(_one_minus_square(x)))),
    "relax.acosh": _over(lambda x: op.sqrt(_above(x))),
    "relax.asin": _over(lambda x: op.sqrt(_one_minus_square(x))),
    "relax.asinh": _over(lambda x: op.sqrt(_plus(x))),
    "relax.atan": _over(_plus),
    "relax.atan2": atan2,
    "relax.atanh": _over(_one_minus_square),
    "relax.cosh": _by(lambda x, y: op.sinh(x)),
    "relax.sinh": _by(lambda x, y: op.cosh(x)),
    "relax.tan": _by(lambda x, y: _plus(y)),
}
"""Op -> its gradient."""
