"""The gradient of local response normalization.

The other normalizations are differentiated in simple operators: see `transform.gradient`.
"""

from __future__ import annotations

from ..ast import Call, Expr
from .common import Rule, attributes, call, power, scalar, sizes


def _window_sum(x: Expr, axis: int, count: int, size: int, like: Expr) -> Expr:
    """The sum of the `count` neighbours of each element along an axis."""
    half = count // 2
    if not half:
        return x
    widths = [[half, half] if i == axis else [0, 0] for i in range(4)]
    padded = call("nn.pad", x, scalar(0, like), pad_width=widths)
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
    x, a = orig.args[0], attributes(orig)
    axis, count = a["axis"], a["size"]
    size, share = sizes(orig, x)[axis], a["alpha"] / a["size"]
    norm = _window_sum(x * x, axis, count, size, x) * scalar(share, x) + scalar(a["bias"], x)
    through = grad * x / power(norm, scalar(a["beta"] + 1, x))
    back = x * _window_sum(through, axis, count, size, x)
    return [grad / power(norm, scalar(a["beta"], x)) - back * scalar(2 * share * a["beta"], x)]


RULES: dict[str, Rule] = {"nn.lrn": _lrn}
