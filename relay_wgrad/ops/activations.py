"""The activations that may follow a training normalization: value, slope, second derivative.

Slopes at corners and for NaN are PyTorch's.  z and g are bound, results are
not; alpha is the parameter of those that have one, a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..ir import const_like
from .ties import gelu_slope, relu_slope

R = relax.op
Expr = Any
_ROOT, _CUBIC = math.sqrt(2 / math.pi), 0.044715  # of GELU's tanh(root (z + cubic z^3))


@dataclass(frozen=True)
class Activation:
    """Of z and alpha: its value, its slope times g, its second derivative.

    `by_result`: whether the slope can be told by the result.  `curved`: the second derivative,
    None where it is 0 almost everywhere.  `parameter`: whether alpha means something, and 0 is not
    all that it may be.
    """

    value: Callable[[Expr, float], Expr]
    slope: Callable[[Expr, Expr, float], Expr]
    by_result: bool = True
    curved: Callable[[Expr, float], Expr] | None = None
    parameter: bool = False


def _relu6(z: Expr, _: float) -> Expr:
    low = R.where(R.less_equal(z, const_like(0, z)), const_like(0, z), z)
    return R.where(R.greater_equal(z, const_like(6, z)), const_like(6, z), low)


def _relu6_slope(g: Expr, z: Expr, _: float) -> Expr:
    return R.where(R.greater_equal(z, const_like(6, z)), const_like(0, g), relu_slope(g, z))


def _leaky(z: Expr, alpha: float) -> Expr:
    return _leaky_slope(z, z, alpha)


def _leaky_slope(g: Expr, z: Expr, alpha: float) -> Expr:
    return R.where(R.greater(z, const_like(0, z)), g, R.multiply(g, const_like(alpha, z)))


def _silu_slope(g: Expr, z: Expr, _: float) -> Expr:
    s = R.sigmoid(z)
    one = const_like(1, z)
    return R.multiply(g, R.multiply(s, R.add(one, R.multiply(z, R.subtract(one, s)))))


def _silu_curve(z: Expr, _: float) -> Expr:
    s = R.sigmoid(z)
    one, two = const_like(1, z), const_like(2, z)
    inner = R.add(two, R.multiply(z, R.subtract(one, R.multiply(two, s))))
    return R.multiply(R.multiply(s, R.subtract(one, s)), inner)


def _times(like: Expr, *factors: Any) -> Expr:
    """A product; numbers are of the dtype of `like`, which is bound."""
    made: Expr = None
    for factor in factors:
        one = const_like(factor, like) if isinstance(factor, (int, float)) else factor
        made = one if made is None else R.multiply(made, one)
    return made


def _plus(like: Expr, value: Expr, number: float) -> Expr:
    return R.add(value, const_like(number, like))


def _gelu_curve(z: Expr, _: float) -> Expr:
    """The density times 2 - z^2."""
    density = _times(z, R.exp(_times(z, z, z, -0.5)), 1 / math.sqrt(2 * math.pi))
    return _times(z, density, _plus(z, _times(z, z, z, -1), 2))


def _gelu_tanh_parts(z: Expr) -> tuple[Expr, Expr, Expr]:
    """(t, 1 - t^2, u') of t = tanh(u), u = root (z + cubic z^3)."""
    t = R.tanh(_times(z, z, _plus(z, _times(z, z, z, _ROOT * _CUBIC), _ROOT)))
    rise = _plus(z, _times(z, z, z, 3 * _ROOT * _CUBIC), _ROOT)
    return t, _plus(z, _times(z, t, t, -1), 1), rise


def _gelu_tanh_slope(g: Expr, z: Expr, _: float) -> Expr:
    t, steep, rise = _gelu_tanh_parts(z)
    return _times(z, g, R.add(_plus(z, t, 1), _times(z, z, steep, rise)), 0.5)


def _gelu_tanh_curve(z: Expr, _: float) -> Expr:
    """(1 - t^2) (u' + z (u'' / 2 - t u'^2)), where u'' = 6 root cubic z."""
    t, steep, rise = _gelu_tanh_parts(z)
    bend = R.subtract(_times(z, z, 3 * _ROOT * _CUBIC), _times(z, t, rise, rise))
    return _times(z, steep, R.add(rise, _times(z, z, bend)))


def _hardswish(z: Expr, _: float) -> Expr:
    return _in_parts(z, const_like(0, z), _times(z, z, _plus(z, z, 3), 1 / 6), z)


def _hardswish_slope(g: Expr, z: Expr, _: float) -> Expr:
    line = _plus(z, _times(z, z, 1 / 3), 0.5)
    return _in_parts(z, const_like(0, z), _times(z, g, line), g)


def _hardswish_curve(z: Expr, _: float) -> Expr:
    return _in_parts(z, const_like(0, z), const_like(1 / 3, z), const_like(0, z))


def _in_parts(z: Expr, low: Expr, between: Expr, high: Expr) -> Expr:
    """By where z lies: up to -3, between, from 3."""
    rest = R.where(R.greater_equal(z, const_like(3, z)), high, between)
    return R.where(R.less_equal(z, const_like(-3, z)), low, rest)


def _exp_below(z: Expr) -> Expr:
    """exp(z) where z < 0, else 1: what is not chosen stays finite."""
    return R.exp(R.where(R.less(z, const_like(0, z)), z, const_like(0, z)))


def _elu(z: Expr, alpha: float) -> Expr:
    return R.where(R.less(z, const_like(0, z)), _times(z, _plus(z, _exp_below(z), -1), alpha), z)


def _elu_slope(g: Expr, z: Expr, alpha: float) -> Expr:
    return R.where(R.less_equal(z, const_like(0, z)), _times(z, g, _exp_below(z), alpha), g)


def _elu_curve(z: Expr, alpha: float) -> Expr:
    return R.where(R.less(z, const_like(0, z)), _times(z, _exp_below(z), alpha), const_like(0, z))


ACTIVATIONS: dict[str, Activation] = {
    "": Activation(lambda z, _: z, lambda g, z, _: g),
    "relu": Activation(lambda z, _: R.nn.relu(z), lambda g, z, _: relu_slope(g, z)),
    "relu6": Activation(_relu6, _relu6_slope),
    "leaky_relu": Activation(_leaky, _leaky_slope, parameter=True),
    "silu": Activation(lambda z, _: R.nn.silu(z), _silu_slope, by_result=False, curved=_silu_curve),
    "gelu": Activation(
        lambda z, _: R.nn.gelu(z), lambda g, z, _: gelu_slope(g, z), by_result=False,
        curved=_gelu_curve,
    ),
    "gelu_tanh": Activation(
        lambda z, _: R.nn.gelu_tanh(z), _gelu_tanh_slope, by_result=False, curved=_gelu_tanh_curve
    ),
    "hardswish": Activation(
        _hardswish, _hardswish_slope, by_result=False, curved=_hardswish_curve
    ),
    "elu": Activation(_elu, _elu_slope, by_result=False, curved=_elu_curve, parameter=True),
}  # fmt: skip
