"""The gradient of local response normalization.

The other normalizations are differentiated in simple operators: see `transform.gradient`.
"""

from __future__ import annotations

from ..ast import Call, Expr
from ..records import attributes_of
from .common import Rule, call, constant, in_float32, power, sizes, type_of


def _window_sum(x: Expr, axis: int, count: int, size: int, dtype: str) -> Expr:
    """The sum of the `count` neighbours of each element along an axis."""
    half = count // 2
    if not half:
        return x
    widths = [[half, half] if i == axis else [0, 0] for i in range(4)]
    padded = call("nn.pad", x, constant(0, dtype), pad_width=widths)
    out: Expr | None = None
    for i in range(count):
        part = call("strided_slice", padded, begin=[i], end=[i + size], strides=[1], axes=[axis])
        out = part if out is None else out + part
    assert out is not None
    return out


def _lrn(orig: Call, grad: Expr) -> list[Expr]:
    """y = x / n**b with n = bias + a/s S(x x), S a sum of s neighbours, its own transpose:

    dx = g / n**b - 2 a b / s x S(g x / n**(b + 1))
    """
    x, a = orig.args[0], attributes_of(orig)
    dtype = type_of(x).dtype
    axis, count = a["axis"], a["size"]
    size, share = sizes(orig, x)[axis], a["alpha"] / a["size"]
    squares = _window_sum(x * x, axis, count, size, dtype)
    norm = squares * constant(share, dtype) + constant(a["bias"], dtype)
    through = grad * x / power(norm, constant(a["beta"] + 1, dtype))
    back = x * _window_sum(through, axis, count, size, dtype)
    slope = grad / power(norm, constant(a["beta"], dtype))
    return [slope - back * constant(2 * share * a["beta"], dtype)]


RULES: dict[str, Rule] = {"nn.lrn": in_float32(_lrn)}
