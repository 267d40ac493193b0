"""Builders of what chooses or places elements by indices: constants become tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ..context import FLOATS, Context, Node, shape_of
from ..curves import running_sum
from ..indexing import at, gathered, known, line_along, line_of, placed, taken, wrapped
from ..weights import Array
from .shapes import axis_of

op = relax.op


def _int64(ctx: Context, index: Any) -> Any:
    if str(index.ty.dtype) in FLOATS or str(index.ty.dtype) == "bool":
        raise ValueError(f"indices are {index.ty.dtype}: expected integers")
    if known(index) is not None or str(index.ty.dtype) == "int64":
        return index
    return ctx.emit(op.astype(index, "int64"))


def gather(ctx: Context, node: Node) -> Any:
    """Gather along `axis`; indices may count from the end."""
    x, index = node.operand(0), ctx.tensor(node.operand(1))
    data = ctx.tensor(x)
    axis = axis_of(node.attr("axis", 0), len(shape_of(data)))
    return taken(ctx, data, axis, _int64(ctx, index))


def gather_elements(ctx: Context, node: Node) -> Any:
    """GatherElements along `axis`."""
    x, index = (ctx.tensor(node.operand(i)) for i in range(2))
    shape, some = shape_of(x), shape_of(index)
    axis = axis_of(node.attr("axis", 0), len(shape))
    if len(some) != len(shape) or any(
        s > n for a, (s, n) in enumerate(zip(some, shape, strict=True)) if a != axis
    ):
        raise ValueError(f"indices of {list(some)} do not fit {list(shape)}")
    return gathered(ctx, x, axis, _int64(ctx, index))


def gather_nd(ctx: Context, node: Node) -> Any:
    """GatherND: the last axis of the indices names places, behind `batch_dims` axes of both."""
    x, index = ctx.tensor(node.operand(0)), _int64(ctx, ctx.tensor(node.operand(1)))
    shape, some = shape_of(x), shape_of(index)
    lead, depth = int(node.attr("batch_dims", 0)), some[-1]
    if some[:lead] != shape[:lead] or lead + depth > len(shape):
        raise ValueError(f"indices of {list(some)} do not fit {list(shape)}, batch_dims={lead}")
    sizes, rest = shape[lead : lead + depth], shape[lead + depth :]
    flat = ctx.emit(op.reshape(x, (math.prod(shape[:lead]) * math.prod(sizes), *rest)))
    base = np.arange(math.prod(shape[:lead])) * math.prod(sizes)
    base = base.reshape(*shape[:lead], *[1] * (len(some) - 1 - lead))
    places = known(index)
    if places is not None:
        return at(ctx, flat, 0, relax.const(line_of(places, sizes) + base, "int64"))
    total = relax.const(np.broadcast_to(base, some[:-1]).astype("int64"), "int64")
    parts = ctx.emit(op.split(index, depth, -1)) if depth > 1 else None
    for i, size in enumerate(sizes):
        part = index if parts is None else ctx.emit(relax.TupleGetItem(parts, i))
        place = wrapped(ctx, ctx.emit(op.reshape(part, some[:-1])), size)
        stride = relax.const(math.prod(sizes[i + 1 :]), "int64")
        total = ctx.emit(op.add(total, op.multiply(place, stride)))
    return at(ctx, flat, 0, total)


def scatter_nd(ctx: Context, node: Node) -> Any:
    """ScatterND at constant indices; of several for one place the last one counts, or all add."""
    x, updates = ctx.tensor(node.operand(0)), ctx.tensor(node.operand(2))
    places, shape = node.static(1, "the indices"), shape_of(x)
    depth = places.shape[-1]
    if depth > len(shape):
        raise ValueError(f"indices of {list(places.shape)} do not fit {list(shape)}")
    linear = line_of(places, shape[:depth]).reshape(-1)
    return _scattered(ctx, node, x, updates, linear, shape[depth:])


def scatter_elements(ctx: Context, node: Node) -> Any:
    """ScatterElements along `axis` at constant indices."""
    x, updates = ctx.tensor(node.operand(0)), ctx.tensor(node.operand(2))
    places, shape = node.static(1, "the indices"), shape_of(x)
    axis = axis_of(node.attr("axis", 0), len(shape))
    return _scattered(ctx, node, x, updates, line_along(places, axis, shape), ())


def _scattered(
    ctx: Context, node: Node, x: Any, updates: Any, linear: Array, rest: tuple[int, ...]
) -> Any:
    reduction = str(node.attr("reduction", "none"))
    if reduction not in ("none", "add"):
        raise ValueError(f"reduction={reduction!r}: only 'none' and 'add' are supported")
    return placed(ctx, x, updates, linear, rest, adds=reduction == "add")


def trilu(ctx: Context, node: Node) -> Any:
    """Trilu: the upper or lower triangle of the last two axes, from a constant diagonal on."""
    x = ctx.tensor(node.operand(0))
    shape = shape_of(x)
    if len(shape) < 2:
        raise ValueError(f"expected matrices, got {list(shape)}")
    k = int(node.setting("k", 1, 0))
    ones = np.ones(shape[-2:], bool)
    kept = np.triu(ones, k) if node.attr("upper", 1) else np.tril(ones, k)
    zero = relax.const(np.zeros((), str(x.ty.dtype)), str(x.ty.dtype))
    return ctx.emit(op.where(relax.const(kept, "bool"), x, zero))


def cumsum(ctx: Context, node: Node) -> Any:
    """CumSum along a constant axis, as a product with a triangle."""
    x = ctx.tensor(node.operand(0))
    axis = axis_of(np.asarray(node.static(1, "the axis")).item(), len(shape_of(x)))
    exclusive, reverse = (bool(node.attr(name, 0)) for name in ("exclusive", "reverse"))
    return running_sum(ctx, x, axis, exclusive=exclusive, reverse=reverse)


def extreme_place(largest: bool) -> Callable[[Context, Node], Any]:
    """ArgMax and ArgMin; the first of equal elements."""

    def build(ctx: Context, node: Node) -> Any:
        if node.attr("select_last_index", 0):
            raise ValueError("select_last_index=1 is not supported")
        x = ctx.tensor(node.operand(0))
        axis = axis_of(node.attr("axis", 0), len(shape_of(x)))
        keep = bool(node.attr("keepdims", 1))
        return ctx.emit((op.argmax if largest else op.argmin)(x, axis, keepdims=keep))

    return build


INDEXING: dict[str, Callable[[Context, Node], Any]] = {
    "ArgMax": extreme_place(largest=True),
    "ArgMin": extreme_place(largest=False),
    "CumSum": cumsum,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Trilu": trilu,
}
"""ONNX op -> builder."""
