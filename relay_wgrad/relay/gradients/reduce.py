"""Gradients of reductions and of softmax."""

from __future__ import annotations

from ..ast import Call, Expr
from ..records import attributes_of
from ..records.reduce import reduced_axes
from ..records.table import Call as Site
from .common import (
    Rule,
    broadcast_to_like,
    call,
    cast_like,
    collapse_sum_like,
    exp,
    in_float32,
    scalar,
    sizes,
    total,
    type_of,
)


def _axes(orig: Call) -> list[int]:
    """The axes that go."""
    data = type_of(orig.args[0])
    return reduced_axes(Site("reduce", ("data",), (data,), attributes_of(orig)))


def _expanded(x: Expr, orig: Call) -> Expr:
    """With the axes that went, of size 1."""
    if not attributes_of(orig)["keepdims"]:
        for axis in _axes(orig):
            x = call("expand_dims", x, axis=axis)
    return x


def _count(orig: Call) -> int:
    count, shape = 1, sizes(orig, orig.args[0])
    for axis in _axes(orig):
        count *= shape[axis]
    return count


def _per_element(x: Expr, orig: Call, times: int, less: int) -> Expr:
    """x times a number over how many elements are reduced, less some; the run counts them where
    only it knows."""
    data = orig.args[0]
    if all(isinstance(size, int) for size in type_of(data).shape):
        return x * scalar(times / (_count(orig) - less), data)
    count = total(call("ones_like", data), _axes(orig), keepdims=True)
    return x * scalar(times, data) / (count - scalar(less, data) if less else count)


def _sum(orig: Call, grad: Expr) -> list[Expr]:
    return [broadcast_to_like(_expanded(grad, orig), orig.args[0])]


def _mean(orig: Call, grad: Expr) -> list[Expr]:
    data = orig.args[0]
    return [broadcast_to_like(_per_element(_expanded(grad, orig), orig, 1, 0), data)]


def _extreme(orig: Call, grad: Expr) -> list[Expr]:
    """To the elements that are the result, in equal parts."""
    data = orig.args[0]
    best, grad = _expanded(orig, orig), _expanded(grad, orig)
    chosen = cast_like(call("equal", broadcast_to_like(best, data), data), data)
    number = total(chosen, _axes(orig), keepdims=True) if _axes(orig) else chosen
    return [chosen * grad / number]


def _variance(orig: Call, grad: Expr) -> list[Expr]:
    """Of sum((x - m)**2) / n: 2 (x - m) / n by x, minus that by m."""
    data, mean = orig.args
    less = int(attributes_of(orig)["unbiased"])
    slope = (data - mean) * _per_element(_expanded(grad, orig), orig, 2, less)
    return [slope, collapse_sum_like(-slope, mean)]


def _softmax(orig: Call, grad: Expr) -> list[Expr]:
    axis = attributes_of(orig)["axis"]
    return [(grad - total(grad * orig, [axis], keepdims=True)) * orig]


def _log_softmax(orig: Call, grad: Expr) -> list[Expr]:
    axis = attributes_of(orig)["axis"]
    return [grad - total(grad, [axis], keepdims=True) * exp(orig)]


RULES: dict[str, Rule] = {
    "sum": _sum,
    "mean": in_float32(_mean),
    "max": in_float32(_extreme),
    "min": in_float32(_extreme),
    "variance": in_float32(_variance),
    "nn.softmax": in_float32(_softmax),
    "nn.log_softmax": in_float32(_log_softmax),
}
