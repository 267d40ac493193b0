"""Gradients of pools of volumes, as two of images, and of their upsampling, as a resize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..ast import Call, Expr, Op
from ..ops import lookup
from ..ops.table import Call as Site
from ..ops.three_dimensions import POOLS, as_resize, parts_of
from . import image, pool
from .common import Rule, attributes, call, sizes, type_of


def _typed(name: str, x: Expr, attrs: Any) -> Call:
    made = call(name, x, **attrs)
    return replace(made, checked_type=lookup(name).infer([type_of(x)], made.attrs))


def _reshaped(x: Expr, shape: Sequence[Any]) -> Call:
    return _typed("reshape", x, {"newshape": shape})


def _moved(x: Expr, axes: Sequence[int]) -> Call:
    return _typed("transpose", x, {"axes": axes})


def _pool(orig: Call, grad: Expr) -> list[Expr]:
    """y = columns(planes(x)): first back through the columns."""
    assert isinstance(orig.op, Op)
    name, data = orig.op.name, orig.args[0]
    sizes(orig, data)
    parts, two = parts_of(name, (type_of(data),), attributes(orig)), POOLS[name]
    rule = pool.RULES[two]
    x = _reshaped(_moved(data, parts.order), parts.planes.tensor().shape)
    planes = _typed(two, x, parts.planes.attrs)
    columns = _typed(two, _reshaped(planes, parts.columns.tensor().shape), parts.columns.attrs)
    back = call("transpose", grad, axes=_inverse(parts.back))
    back = call("reshape", back, newshape=type_of(columns).shape)
    try:
        back = call("reshape", rule(columns, back)[0], newshape=type_of(planes).shape)
        back = call("reshape", rule(planes, back)[0], newshape=_volume(data, parts.order))
    except ValueError as error:
        raise ValueError(str(error).replace(two, name)) from error
    return [call("transpose", back, axes=_inverse(parts.order))]


def _inverse(axes: Sequence[int]) -> list[int]:
    """What undoes a transposition."""
    return [list(axes).index(i) for i in range(len(axes))]


def _volume(data: Expr, order: Sequence[int]) -> list[Any]:
    shape = type_of(data).shape
    return [shape[axis] for axis in order]


def _upsampling(orig: Call, grad: Expr) -> list[Expr]:
    (data,) = orig.args
    site = Site("nn.upsampling3d", ("data",), (type_of(data),), attributes(orig))
    made = call("image.resize3d", data, **as_resize(site, type_of(orig)))
    return list(image.RULES["image.resize3d"](replace(made, checked_type=type_of(orig)), grad))


RULES: dict[str, Rule] = {**dict.fromkeys(POOLS, _pool), "nn.upsampling3d": _upsampling}
