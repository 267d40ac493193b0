"""The steps of the generator `fused`: on a surface, and in float64 with a bound of the error.

A bound is a rigorous one of what any order of roundings may make of a value: each operator's result
is rounded to its type or kept in a wider one, sums are float32's (float64's of doubles).  Where it
cannot say what is right (a choice between numbers that may be equal, infinities), it is infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import erf

DTYPES = ("bfloat16", "float16", "float32", "float64")
# Of each type half of the distance from 1 to the next number, the least number, the largest.
_TYPES = {
    name: (float(ml_dtypes.finfo(name).eps) / 2, float(ml_dtypes.finfo(name).smallest_subnormal),
           float(ml_dtypes.finfo(name).max))
    for name in DTYPES
}  # fmt: skip
# What is computed approximately (exp, erf, tanh), in units of float32's or float64's roundings.
_APPROXIMATE = 64.0


class Known(NamedTuple):
    """A tensor's values in float64, how far each may be from them, and its dtype."""

    value: Any
    away: Any
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)


def _wide_unit(dtype: str) -> float:
    return _TYPES["float64" if dtype == "float64" else "float32"][0]


def rounded(value: Any, away: Any, dtype: str, own: Any = 0.0) -> Known:
    """A result that is stored in a type; `own`: what the operator itself adds."""
    unit, least, largest = _TYPES[dtype]
    away = np.nan_to_num(away + own, nan=np.inf, posinf=np.inf)
    away = away + 1.01 * unit * (np.abs(value) + away) + least
    # TVM's float32 may flush what is below its least normal number; above the largest is infinity.
    away = np.where(np.abs(value) + away >= largest, np.inf, away + 1.2e-38)
    return Known(value, away, dtype)


def _elementwise(
    function: Callable[..., Any], slope: Callable[..., Any], terms: float = 0.0
) -> Any:
    """`slope(x, d)`: how far the function's value may be where x is d away at most."""

    def of(x: Known) -> Known:
        with np.errstate(all="ignore"):
            value = function(x.value)
            # TVM's own kernels compute a half's tanh in halves.
            unit = terms * _wide_unit(x.dtype) + 4 * _TYPES[x.dtype][0]
            own = unit * (np.abs(value) + _wide_unit(x.dtype)) if terms else 0.0
            return rounded(value, slope(x.value, x.away), x.dtype, own)

    return of


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _gap(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """Of a function that grows."""
    return lambda x, d: np.maximum(function(x + d) - function(x), function(x) - function(x - d))


ONE: dict[str, Callable[[Known], Known]] = {
    "negative": _elementwise(np.negative, lambda x, d: d),
    "abs": _elementwise(np.abs, lambda x, d: d),
    "sigmoid": _elementwise(_sigmoid, lambda x, d: np.minimum(d / 4, 1), _APPROXIMATE),
    "tanh": _elementwise(np.tanh, lambda x, d: np.minimum(d, 2), _APPROXIMATE),
    "exp": _elementwise(np.exp, _gap(np.exp), _APPROXIMATE),
    "erf": _elementwise(erf, lambda x, d: np.minimum(1.13 * d, 2), _APPROXIMATE),
    "relu": _elementwise(lambda x: np.maximum(x, 0), lambda x, d: d),
    "square": _elementwise(np.square, lambda x, d: d * (2 * np.abs(x) + d)),
    "half": _elementwise(lambda x: x * 0.5, lambda x, d: d / 2),
    "shift": _elementwise(lambda x: x + 1.5, lambda x, d: d),
    "clip": _elementwise(lambda x: np.clip(x, -1, 1), lambda x, d: np.minimum(d, 2)),
}


def add(x: Known, y: Known) -> Known:
    return rounded(x.value + y.value, x.away + y.away, x.dtype)


def subtract(x: Known, y: Known) -> Known:
    return rounded(x.value - y.value, x.away + y.away, x.dtype)


def multiply(x: Known, y: Known) -> Known:
    away = np.abs(x.value) * y.away + np.abs(y.value) * x.away + x.away * y.away
    return rounded(x.value * y.value, away, x.dtype)


def maximum(x: Known, y: Known) -> Known:
    return rounded(np.maximum(x.value, y.value), np.maximum(x.away, y.away), x.dtype)


def minimum(x: Known, y: Known) -> Known:
    return rounded(np.minimum(x.value, y.value), np.maximum(x.away, y.away), x.dtype)


def _chosen(far: Any, unknown: Any, x: Known, y: Known, value: Any) -> Known:
    """A choice; where it is unknown either may be."""
    x_away, y_away = np.abs(x.value - value) + x.away, np.abs(y.value - value) + y.away
    away = np.where(unknown, np.maximum(x_away, y_away), far)
    return rounded(value, away, x.dtype)


def choose(x: Known, y: Known) -> Known:
    """Of where(x > y, y, x): their gradient's like."""
    takes = x.value > y.value
    value, far = np.where(takes, y.value, x.value), np.where(takes, y.away, x.away)
    return _chosen(far, np.abs(x.value - y.value) <= x.away + y.away, x, y, value)


def mask(x: Known, y: Known) -> Known:
    """where(x > 0.25, y, 0), as a gradient of a ReLU is."""
    takes = x.value > 0.25
    value, far = np.where(takes, y.value, 0.0), np.where(takes, y.away, 0.0)
    nothing = Known(np.zeros_like(y.value), np.zeros_like(y.away), y.dtype)
    return _chosen(far, np.abs(x.value - 0.25) <= x.away, y, nothing, value)


TWO = {f.__name__: f for f in (add, subtract, multiply, maximum, minimum, choose, mask)}


def _count(x: Known, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[a] for a in axes], dtype=int))


def total(x: Known, axes: tuple[int, ...], keep: bool) -> Known:
    size = np.abs(x.value) + x.away
    own = (8 + _count(x, axes)) * _wide_unit(x.dtype) * size.sum(axes, keepdims=keep)
    sums = (each.sum(axes, keepdims=keep) for each in (x.value, x.away))
    return rounded(*sums, x.dtype, own)


def mean(x: Known, axes: tuple[int, ...], keep: bool) -> Known:
    made, count = total(x, axes, keep), _count(x, axes)
    own = (8 + count) * _wide_unit(x.dtype) * (np.abs(x.value) + x.away).mean(axes, keepdims=keep)
    return rounded(made.value / count, x.away.mean(axes, keepdims=keep), x.dtype, own)


def variance(x: Known, axes: tuple[int, ...], keep: bool) -> Known:
    middle = x.value.mean(axes, keepdims=True)
    off = x.away + x.away.mean(axes, keepdims=True)
    size = np.abs(x.value - middle) + off
    # In whatever way: E[x^2] - E[x]^2 has float32's roundings of the squares.
    squares = (np.square(np.abs(x.value) + x.away)).mean(axes, keepdims=keep)
    own = (16 + _count(x, axes)) * _wide_unit(x.dtype) * squares
    away = (2 * size * off + off * off).mean(axes, keepdims=keep)
    return rounded(x.value.var(axes, keepdims=keep), away, x.dtype, own)


def most(x: Known, axes: tuple[int, ...], keep: bool) -> Known:
    return rounded(x.value.max(axes, keepdims=keep), x.away.max(axes, keepdims=keep), x.dtype)


def least(x: Known, axes: tuple[int, ...], keep: bool) -> Known:
    return rounded(x.value.min(axes, keepdims=keep), x.away.max(axes, keepdims=keep), x.dtype)


REDUCED = {"sum": total, "mean": mean, "variance": variance, "max": most, "min": least}


def cumsum(x: Known, axis: int) -> Known:
    size = np.abs(x.value) + x.away
    own = (8 + x.shape[axis]) * _wide_unit(x.dtype) * np.cumsum(size, axis)
    return rounded(np.cumsum(x.value, axis), np.cumsum(x.away, axis), x.dtype, own)


def _softmax(x: Known, axis: int) -> tuple[Any, Any, Any]:
    """log(softmax), how far it may be, and what float32 adds, of which exp is the most."""
    shifted = x.value - x.value.max(axis, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    away = x.away + x.away.max(axis, keepdims=True)
    span = np.abs(x.value).max(axis, keepdims=True) + np.abs(logs) + x.shape[axis]
    return logs, away, _APPROXIMATE * _wide_unit(x.dtype) * span


def softmax(x: Known, axis: int) -> Known:
    logs, away, own = _softmax(x, axis)
    with np.errstate(over="ignore", invalid="ignore"):
        return rounded(np.exp(logs), np.exp(logs) * np.expm1(away + own), x.dtype, own * 1e-6)


def log_softmax(x: Known, axis: int) -> Known:
    logs, away, own = _softmax(x, axis)
    return rounded(logs, away, x.dtype, own)


ALONG: dict[str, Callable[[Known, int], Known]] = {
    "cumsum": cumsum, "softmax": softmax, "log_softmax": log_softmax,
}  # fmt: skip


def windows(x: Known, layout: str, size: int, is_max: bool) -> Known:
    """Pools of size x size pixels with a stride of 2."""
    rows = layout.index("H")

    def of(values: Any) -> Any:
        view = sliding_window_view(values, (size, size), (rows, rows + 1))
        steps = [slice(None)] * values.ndim
        steps[rows] = steps[rows + 1] = slice(None, None, 2)
        return view[tuple(steps)]

    value, away = of(x.value), of(x.away)
    if is_max:
        return rounded(value.max((-2, -1)), away.max((-2, -1)), x.dtype)
    own = 32 * _wide_unit(x.dtype) * (np.abs(value) + away).mean((-2, -1))
    return rounded(value.mean((-2, -1)), away.mean((-2, -1)), x.dtype, own)


def same(x: Known, move: Callable[[Any], Any]) -> Known:
    """What moves elements."""
    return Known(move(x.value), move(x.away), x.dtype)


def cast(x: Known, dtype: str) -> Known:
    return rounded(x.value, x.away, dtype)


def joined(parts: Sequence[Known], axis: int) -> Known:
    value, away = (np.concatenate([p[i] for p in parts], axis) for i in (0, 1))
    return Known(value, away, parts[0].dtype)


def broadcast(parts: Sequence[Known]) -> list[Known]:
    values = np.broadcast_arrays(*(p.value for p in parts))
    aways = np.broadcast_arrays(*(p.away for p in parts))
    return [Known(v, a, p.dtype) for v, a, p in zip(values, aways, parts, strict=True)]


def worst(got: Any, want: Known) -> str | None:
    """What is further from a tensor than may be, if anything."""
    if got.shape != want.shape:
        return f"shape {got.shape} for {want.shape}"
    told = np.isfinite(want.away)
    got = got.astype("float64")
    with np.errstate(invalid="ignore"):
        right = np.abs(got - want.value) <= want.away
    if (right | ~told).all():
        return None
    at = tuple(int(i) for i in np.argwhere(told & ~right)[0])
    return (
        f"{int((told & ~right).sum())} of {right.size} are wrong, at {at}: {got[at]:.6g} for "
        f"{want.value[at]:.6g}, {want.away[at]:.1g} away at most"
    )
