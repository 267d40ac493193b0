"""Gradients of pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ast import Call, Expr, MetaAttrs, Op
from ..records import attributes_of, lookup
from ..records.pool import parts_of
from ..records.table import Call as Site
from ..records.windows import spatial_axes
from . import one_dimension
from .common import (
    Rule,
    call,
    constant,
    in_float32,
    refuse,
    sizes,
    type_of,
    typed,
    zeros_like,
)
from .nn import times_matrix

_AVG_GRAD, _MAX_GRAD = "nn.avg_pool2d_grad", "nn.max_pool2d_grad"


def _pool_grad(name: str, grad: Expr, data: Expr, attrs: dict[str, Any]) -> Expr:
    """A call of a pool's gradient; Relay keeps the average's attributes in the metadata."""
    op = lookup(name)
    if op.meta is None:
        return call(name, grad, data, **attrs)
    return Call(Op(name), (grad, data), MetaAttrs(op.meta, op.read({"dilation": ()} | attrs)))


def _windowed(name: str) -> Rule:
    def rule(orig: Call, grad: Expr) -> list[Expr]:
        a = attributes_of(orig)
        if any(d != 1 for d in a["dilation"]):
            refuse(orig, f"only with dilation 1, got {list(a['dilation'])}")
        attrs = {k: v for k, v in a.items() if k not in ("dilation", "out_layout")}
        return [_pool_grad(name, grad, orig.args[0], attrs)]

    return rule


def _axes(orig: Call) -> tuple[int, ...]:
    site = Site("pool", ("data",), (type_of(orig.args[0]),), attributes_of(orig))
    return spatial_axes(site, attributes_of(orig)["layout"])


def _whole(name: str) -> Rule:
    """One window over all."""

    def rule(orig: Call, grad: Expr) -> list[Expr]:
        data = orig.args[0]
        shape = sizes(orig, data)
        window = tuple(shape[axis] for axis in _axes(orig))
        attrs: dict[str, Any] = {"pool_size": window, "layout": attributes_of(orig)["layout"]}
        return [_pool_grad(name, grad, data, attrs)]

    return rule


def _adaptive(name: str) -> Rule:
    """Windows of one size where they divide the input's; else the mean's weights by matrices."""

    def rule(orig: Call, grad: Expr) -> list[Expr]:
        data = orig.args[0]
        shape, made, axes = sizes(orig, data), sizes(orig, orig), _axes(orig)
        if all(shape[axis] % made[axis] == 0 for axis in axes):
            window = tuple(shape[axis] // made[axis] for axis in axes)
            attrs: dict[str, Any] = {"layout": attributes_of(orig)["layout"]}
            return [_pool_grad(name, grad, data, attrs | {"pool_size": window, "strides": window})]
        if name == _MAX_GRAD:
            refuse(orig, f"only where the sizes divide, got {shape} and {made}")
        for axis in axes:
            matrix = constant(_means(shape[axis], made[axis]).T, type_of(data).dtype)
            grad = times_matrix(grad, axis, len(shape), matrix)
        return [grad]

    return rule


def _means(size: int, out: int) -> np.ndarray[Any, Any]:
    """(out, size): row i is the mean of [floor(i * size / out), ceil((i + 1) * size / out))."""
    matrix = np.zeros((out, size))
    for i in range(out):
        begin, end = i * size // out, -(-(i + 1) * size // out)
        matrix[i, begin:end] = 1 / (end - begin)
    return matrix


def _avg_pool2d_grad(orig: Call, grad: Expr) -> list[Expr]:
    """It is linear in its gradient, and the pool is its transpose; data gives only a shape."""
    attrs = {k: v for k, v in attributes_of(orig).items() if k not in ("dilation", "out_layout")}
    return [call("nn.avg_pool2d", grad, **attrs), zeros_like(orig.args[1])]


def _of_volumes(rule: Rule, name: str) -> Rule:
    """By the rule of images: y = columns(planes(x)), so first back through the columns."""

    def of_volumes(orig: Call, grad: Expr) -> list[Expr]:
        assert isinstance(orig.op, Op)
        (data,) = orig.args
        shape = sizes(orig, data)
        site = Site(orig.op.name, ("data",), (type_of(data),), attributes_of(orig))
        parts = parts_of(site, type_of(orig))
        x = typed("transpose", data, axes=parts.order)
        x = typed("reshape", x, newshape=parts.planes.tensor().shape)
        planes = typed(name, x, **parts.planes.attrs)
        x = typed("reshape", planes, newshape=parts.columns.tensor().shape)
        columns = typed(name, x, **parts.columns.attrs)
        back: Expr = call("transpose", grad, axes=_inverse(parts.back))
        back = call("reshape", back, newshape=type_of(columns).shape)
        try:
            back = call("reshape", rule(columns, back)[0], newshape=type_of(planes).shape)
            back = rule(planes, back)[0]
        except ValueError as error:
            raise ValueError(str(error).replace(name, orig.op.name)) from error
        back = call("reshape", back, newshape=[shape[axis] for axis in parts.order])
        return [call("transpose", back, axes=_inverse(parts.order))]

    return of_volumes


def _inverse(axes: Sequence[int]) -> list[int]:
    """What undoes a transposition."""
    return [list(axes).index(i) for i in range(len(axes))]


_IMAGES = {
    "max": _windowed(_MAX_GRAD),
    "avg": _windowed(_AVG_GRAD),
    "adaptive_max": _adaptive(_MAX_GRAD),
    "adaptive_avg": in_float32(_adaptive(_AVG_GRAD)),
}
RULES: dict[str, Rule] = {
    **{
        f"nn.{name}_pool{rank}d": one_dimension.of_rank(rank, rule)
        for name, rule in _IMAGES.items()
        for rank in (1, 2)
    },
    **{
        f"nn.{name}_pool3d": _of_volumes(rule, f"nn.{name}_pool2d")
        for name, rule in _IMAGES.items()
    },
    "nn.global_max_pool2d": _whole(_MAX_GRAD),
    "nn.global_avg_pool2d": _whole(_AVG_GRAD),
    "nn.avg_pool2d_grad": _avg_pool2d_grad,
}
