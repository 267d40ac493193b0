"""Gradients of operators of one element at a time; the forms are Relay's where it has one."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..ast import Call, Expr
from ..records import attributes_of
from .common import (
    Rule,
    broadcast_to_like,
    call,
    cast_like,
    collapse_sum_like,
    cos,
    cosh,
    exp,
    less,
    log,
    ones_like,
    power,
    scalar,
    sin,
    sinh,
    sqrt,
    where,
    zeros_for_all,
    zeros_like,
)


def _unary(rule: Callable[[Expr, Call, Expr], Expr]) -> Rule:
    """From (argument, result, gradient) to the argument's gradient."""
    return lambda orig, grad: [rule(orig.args[0], orig, grad)]


def _log_base(base: float) -> Rule:
    return _unary(lambda x, y, g: g * ones_like(x) / (log(scalar(base, x)) * x))


def _sqrt(x: Expr, y: Call, g: Expr) -> Expr:
    half = scalar(0.5, x)
    return g * half * power(x, -half)


def _relu(x: Expr, y: Call, g: Expr) -> Expr:
    zeros = zeros_like(x)
    return where(less(x, zeros), zeros, ones_like(x) * g)


def _abs(x: Expr, y: Call, g: Expr) -> Expr:
    ones = ones_like(x)
    return where(less(x, zeros_like(x)), -ones * g, ones * g)


def _clip(x: Expr, y: Call, g: Expr) -> Expr:
    low, high = (broadcast_to_like(scalar(attributes_of(y)[a], x), x) for a in ("a_min", "a_max"))
    zeros = zeros_like(x)
    inner = where(less(high, x), zeros, ones_like(x) * g)
    return where(less(x, low), zeros, inner)


def _leaky_relu(x: Expr, y: Call, g: Expr) -> Expr:
    low = g * scalar(attributes_of(y)["alpha"], x)
    return where(call("greater", x, zeros_like(x)), g, low)


def _binary(rule: Callable[[Expr, Expr, Call, Expr], tuple[Expr, Expr]]) -> Rule:
    """From (left, right, result, gradient) to both gradients, before broadcasting is undone."""

    def apply(orig: Call, grad: Expr) -> list[Expr]:
        x, y = orig.args
        return [
            collapse_sum_like(part, arg)
            for part, arg in zip(rule(x, y, orig, grad), (x, y), strict=True)
        ]

    return apply


def _power(x: Expr, y: Expr, z: Call, g: Expr) -> tuple[Expr, Expr]:
    """y * x**(y - 1), and x**y * log(x); the latter is 0 where x is not positive."""
    # In the result's shape, for where's sake.
    base = broadcast_to_like(x, z)
    positive = call("greater", base, zeros_like(base))
    slope = where(positive, z * log(where(positive, base, ones_like(base))), zeros_like(base))
    return g * y * power(x, y - ones_like(y)), g * slope


def _extremum(comparison: str) -> Rule:
    """The gradient goes to the argument that is the result; to the left where both are."""

    def rule(x: Expr, y: Expr, z: Call, g: Expr) -> tuple[Expr, Expr]:
        left = call(comparison, x, y)
        return where(left, g, zeros_like(g)), where(left, zeros_like(g), g)

    return _binary(rule)


def _where(orig: Call, grad: Expr) -> list[Expr]:
    condition, x, y = orig.args
    zeros = zeros_like(grad)
    return [
        zeros_like(condition),
        collapse_sum_like(where(condition, grad, zeros), x),
        collapse_sum_like(where(condition, zeros, grad), y),
    ]


RULES: dict[str, Rule] = {
    "copy": _unary(lambda x, y, g: g),
    "negative": _unary(lambda x, y, g: -g),
    "abs": _unary(_abs),
    "exp": _unary(lambda x, y, g: g * exp(x)),
    "log": _unary(lambda x, y, g: g * ones_like(x) / x),
    "log2": _log_base(2.0),
    "log10": _log_base(10.0),
    "sqrt": _unary(_sqrt),
    "rsqrt": _unary(lambda x, y, g: g * scalar(-0.5, x) * y / x),
    "sigmoid": _unary(lambda x, y, g: g * y * (ones_like(y) - y)),
    "tanh": _unary(lambda x, y, g: g * (ones_like(y) - y * y)),
    "sin": _unary(lambda x, y, g: g * cos(x)),
    "cos": _unary(lambda x, y, g: g * (-ones_like(x) * sin(x))),
    "tan": _unary(lambda x, y, g: g / (cos(x) * cos(x))),
    "sinh": _unary(lambda x, y, g: g * cosh(x)),
    "cosh": _unary(lambda x, y, g: g * sinh(x)),
    "asin": _unary(lambda x, y, g: g * ones_like(x) / sqrt(ones_like(x) - x * x)),
    "acos": _unary(lambda x, y, g: g * (-ones_like(x) / sqrt(ones_like(x) - x * x))),
    "atan": _unary(lambda x, y, g: g * ones_like(x) / (ones_like(x) + x * x)),
    "asinh": _unary(lambda x, y, g: g * ones_like(x) / sqrt(ones_like(x) + x * x)),
    "acosh": _unary(lambda x, y, g: g * ones_like(x) / sqrt(x * x - ones_like(x))),
    "atanh": _unary(lambda x, y, g: g * ones_like(x) / (ones_like(x) - x * x)),
    "erf": _unary(lambda x, y, g: scalar(2 / math.sqrt(math.pi), x) * exp(-x * x) * g),
    "nn.relu": _unary(_relu),
    "nn.leaky_relu": _unary(_leaky_relu),
    "clip": _unary(_clip),
    "cast": _unary(lambda x, y, g: cast_like(g, x)),
    "cast_like": lambda orig, g: [cast_like(g, orig.args[0]), zeros_like(orig.args[1])],
    "add": _binary(lambda x, y, z, g: (g, g)),
    "subtract": _binary(lambda x, y, z, g: (g, -g)),
    "multiply": _binary(lambda x, y, z, g: (g * y, g * x)),
    "divide": _binary(lambda x, y, z, g: (g / y, -(g * z / y))),
    "power": _binary(_power),
    "maximum": _extremum("greater_equal"),
    "minimum": _extremum("less_equal"),
    "where": _where,
    # Steps: flat wherever they have a slope.
    **dict.fromkeys(
        ("sign", "floor", "ceil", "trunc", "round", "floor_divide", "trunc_divide"), zeros_for_all
    ),
}
