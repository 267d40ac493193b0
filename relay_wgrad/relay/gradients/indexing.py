"""Gradients of operators that read by index, and of those that only tell sizes or places."""

from __future__ import annotations

import numpy as np

from ..ast import Call, Expr
from ..records import attributes_of
from .common import (
    Rule,
    call,
    cast_like,
    constant,
    refuse,
    sizes,
    type_of,
    zeros_for_all,
    zeros_like,
)


def _gather_nd(orig: Call, grad: Expr) -> list[Expr]:
    """Each part's gradient is added where it was read; what was read outside is the nearest."""
    data, indices = orig.args
    batch = attributes_of(orig)["batch_dims"]
    if batch:
        refuse(orig, f"only with batch_dims=0, got {batch}")
    ty, shape = type_of(indices), sizes(orig, data)
    count = sizes(orig, indices)[0]
    column = np.array(shape[:count]).reshape([-1] + [1] * (len(ty.shape) - 1))
    held = call("maximum", indices, constant(-column, ty.dtype))
    held = call("minimum", held, constant(column - 1, ty.dtype))
    return [call("scatter_nd", zeros_like(data), held, grad, mode="add"), zeros_like(indices)]


def _arange(orig: Call, grad: Expr) -> list[Expr]:
    """start + k step for each k; the stop only decides how many there are."""
    start, stop, step = orig.args
    places = call("divide", call("subtract", orig, cast_like(start, orig)), cast_like(step, orig))
    parts = call("sum", grad), call("sum", call("multiply", grad, places))
    return [cast_like(parts[0], start), zeros_like(stop), cast_like(parts[1], step)]


RULES: dict[str, Rule] = {
    "gather_nd": _gather_nd,
    "arange": _arange,
    **dict.fromkeys(("shape_of", "ndarray_size"), zeros_for_all),
}
