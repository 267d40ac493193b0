"""Builders of what chooses or places elements by indices: constants become tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ...ops.resample import resample
from ..context import FLOATS, Context, Node, shape_of
from ..indexing import at, checked, gathered, known, taken, wrapped
from ..resampled import by_matrix
from ..weights import Array
from .shapes import axis_of

op = relax.op
_LONGEST = 4096  # of an axis that is summed up by a triangle


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
        return at(ctx, flat, 0, relax.const(_linear(places, sizes) + base, "int64"))
    total = relax.const(np.broadcast_to(base, some[:-1]).astype("int64"), "int64")
    parts = ctx.emit(op.split(index, depth, -1)) if depth > 1 else None
    for i, size in enumerate(sizes):
        part = index if parts is None else ctx.emit(relax.TupleGetItem(parts, i))
        place = wrapped(ctx, ctx.emit(op.reshape(part, some[:-1])), size)
        stride = relax.const(math.prod(sizes[i + 1 :]), "int64")
        total = ctx.emit(op.add(total, op.multiply(place, stride)))
    return at(ctx, flat, 0, total)


def _linear(places: Array, sizes: tuple[int, ...]) -> Array:
    """Places by several indices (…, depth) as one."""
    parts = [checked(places[..., i], size) for i, size in enumerate(sizes)]
    return np.asarray(np.ravel_multi_index(parts, sizes), "int64")


def scatter_nd(ctx: Context, node: Node) -> Any:
    """ScatterND at constant indices; of several for one place the last one counts, or all add."""
    x, updates = ctx.tensor(node.operand(0)), ctx.tensor(node.operand(2))
    places, shape = node.static(1, "the indices"), shape_of(x)
    depth = places.shape[-1]
    if depth > len(shape):
        raise ValueError(f"indices of {list(places.shape)} do not fit {list(shape)}")
    linear = _linear(places, shape[:depth]).reshape(-1)
    return _scattered(ctx, node, x, updates, linear, shape[depth:])


def scatter_elements(ctx: Context, node: Node) -> Any:
    """ScatterElements along `axis` at constant indices."""
    x, updates = ctx.tensor(node.operand(0)), ctx.tensor(node.operand(2))
    places, shape = node.static(1, "the indices"), shape_of(x)
    axis = axis_of(node.attr("axis", 0), len(shape))
    grid: list[Any] = list(np.indices(places.shape))
    grid[axis] = checked(places, shape[axis])
    linear = np.ravel_multi_index(grid, shape).reshape(-1)
    return _scattered(ctx, node, x, updates, linear, ())


def _scattered(
    ctx: Context, node: Node, x: Any, updates: Any, linear: Array, rest: tuple[int, ...]
) -> Any:
    """x as rows of `rest`, with the updates' rows at `linear`."""
    shape, reduction = shape_of(x), str(node.attr("reduction", "none"))
    if reduction not in ("none", "add"):
        raise ValueError(f"reduction={reduction!r}: only 'none' and 'add' are supported")
    if str(x.ty.dtype) not in FLOATS:
        raise ValueError(f"{x.ty.dtype}: only floats are supported")
    rows = math.prod(shape) // math.prod(rest)
    if math.prod(shape_of(updates)) != len(linear) * math.prod(rest):
        raise ValueError(f"updates of {list(shape_of(updates))} do not fit {len(linear)} places")
    numbers: list[list[int]] = [[] for _ in range(rows)]
    for number, place in enumerate(linear.tolist()):
        numbers[place] = [*numbers[place], number] if reduction == "add" else [number]
    index = np.full((rows, max(1, *map(len, numbers))), -1, "int32")
    for row, some in enumerate(numbers):
        index[row, : len(some)] = some
    wide = "float64" if str(x.ty.dtype) == "float64" else "float32"
    given = ctx.emit(op.reshape(updates, (len(linear), *rest)))
    tables = relax.const(index, "int32"), relax.const((index >= 0).astype(wide), wide)
    placed = ctx.emit(resample(given, *tables, 0))
    whole = ctx.emit(op.reshape(x, (rows, *rest)))
    if reduction == "add":
        made = ctx.emit(op.add(whole, placed))
    else:
        taken_there = (index[:, 0] >= 0).reshape(rows, *[1] * len(rest))
        made = ctx.emit(op.where(relax.const(taken_there, "bool"), placed, whole))
    return ctx.emit(op.reshape(made, shape))


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
    size = shape_of(x)[axis]
    if size > _LONGEST or str(x.ty.dtype) not in FLOATS:
        raise ValueError(f"of {size} {x.ty.dtype}: only floats, {_LONGEST} at most, are supported")
    triangle = np.tril(np.ones((size, size)), -1 if node.attr("exclusive", 0) else 0)
    return by_matrix(ctx, x, axis, triangle.T if node.attr("reverse", 0) else triangle)


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
