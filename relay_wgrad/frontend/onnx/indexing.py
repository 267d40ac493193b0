"""Builders of what chooses or places elements by indices: constants become tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ...dtypes import FLOATS
from ...ir import const_like
from ..arithmetic import running_sum
from ..context import Context, Value, shape_of
from ..data_movement import split
from ..grids import affine_grid, grid_sample
from ..indexing import (
    at,
    constant_indices,
    gathered,
    line,
    line_along,
    line_of,
    placed,
    take_along,
    wrapped,
)
from ..sizes import completed, factor_and_power, same
from ..sorting import ordered
from ..weights import Array
from .node import Node
from .open_batch import PROBES
from .shapes import axis_of

op = relax.op


def _int64(ctx: Context, index: Any) -> Any:
    if str(index.ty.dtype) in FLOATS or str(index.ty.dtype) == "bool":
        raise ValueError(f"indices are {index.ty.dtype}: expected integers")
    if constant_indices(index) is not None or str(index.ty.dtype) == "int64":
        return index
    return ctx.emit(op.astype(index, "int64"))


def gather(ctx: Context, node: Node) -> Any:
    """Gather along `axis`; indices may count from the end."""
    x = node.operand(0)
    data = ctx.tensor(x)
    if (shape := _all_in_order(ctx, x, shape_of(data), node.operand(1))) is not None:
        return ctx.emit(op.reshape(data, shape))
    index = ctx.tensor(node.operand(1))
    axis = axis_of(node.attr("axis", 0), len(shape_of(data)))
    return take_along(ctx, data, axis, _int64(ctx, index))


def _all_in_order(ctx: Context, x: Value, shape: Any, index: Value) -> list[Any] | None:
    """The shape in which indices take every element of a flat batch, one after another.

    So exporters write `as_strided` (PyTorch's mean over an image whose channels lie last); the
    batch is that of the data, not the one of the file.  Raises ValueError for others of a file's
    batch.
    """
    before = ctx.original.get(x.name)
    if len(shape) != 1 or not x.batched or index.weight:
        return None
    if index.array is not None and index.probes is None:
        found = [index.array]
        if before is None or (len(before) == 1 and same(before[0], shape[0])):
            return None
    elif index.array is None and index.probes is not None:
        found = [*index.probes]
        sizes = [n * c for n in PROBES for c in [factor_and_power(shape[0])[0]]]
        if [p.size for p in found] != sizes:
            return None
    else:
        return None
    whole = all(np.array_equal(p.reshape(-1), np.arange(p.size)) for p in found)
    rests = {p.shape[1:] for p in found}
    if whole and len(rests) == 1 and (index.array is None or before == (found[0].size,)):
        return completed([-1, *rests.pop()], shape)
    raise ValueError(f"its indices are of a batch of {list(before or [])}, not of {list(shape)}")


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
    places = constant_indices(index)
    if places is not None:
        return at(ctx, flat, 0, relax.const(line_of(places, sizes) + base, "int64"))
    columns = [ctx.emit(op.reshape(c, some[:-1])) for c in split(ctx, index, -1, [1] * depth)]
    total = op.add(
        line(ctx, columns, sizes), relax.const(np.broadcast_to(base, some[:-1]), "int64")
    )
    return at(ctx, flat, 0, ctx.emit(total))


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
    return ctx.emit(op.where(relax.const(kept, "bool"), x, const_like(0, x)))


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


def top_k(ctx: Context, node: Node) -> list[Any]:
    """TopK: (the largest or smallest elements of an axis, their places), in order here always."""
    x = ctx.tensor(node.operand(0))
    count = node.setting("k", 1)
    axis = axis_of(node.attr("axis", -1), len(shape_of(x)))
    largest = bool(node.attr("largest", 1))
    return [*ordered(ctx, x, axis, int(np.asarray(count).item()), descending=largest)]


def one_hot(ctx: Context, node: Node) -> Any:
    """OneHot with a constant depth and constant numbers for what is and is not the index."""
    index, values = _int64(ctx, ctx.tensor(node.operand(0))), node.static(2, "the values")
    depth = int(np.asarray(node.static(1, "the depth")).item())
    shape = shape_of(index)
    axis = axis_of(node.attr("axis", -1), len(shape) + 1)
    column = [depth if a == axis else 1 for a in range(len(shape) + 1)]
    names = relax.const(np.arange(depth).reshape(column), "int64")
    apart = ctx.emit(op.expand_dims(wrapped(ctx, index, depth), axis))
    off, on = (
        ctx.const(v) if str(values.dtype) in FLOATS else relax.const(v, str(values.dtype))
        for v in values
    )
    return ctx.emit(op.where(ctx.emit(op.equal(apart, names)), on, off))


def grid_sample_(ctx: Context, node: Node) -> Any:
    """GridSample of images."""
    return grid_sample(
        ctx, ctx.tensor(node.operand(0)), ctx.tensor(node.operand(1)),
        mode=str(node.attr("mode", "linear")),
        border=str(node.attr("padding_mode", "zeros")), corners=bool(node.attr("align_corners", 0)),
    )  # fmt: skip


def affine_grid_(ctx: Context, node: Node) -> Any:
    """AffineGrid of images."""
    size = [int(s) for s in node.static(1, "the size")]
    if len(size) != 4:
        raise ValueError(f"size {size}: only images are supported")
    theta = ctx.tensor(node.operand(0))
    return affine_grid(ctx, theta, (size[2], size[3]), bool(node.attr("align_corners", 0)))


INDEXING: dict[str, Callable[[Context, Node], Any]] = {
    "AffineGrid": affine_grid_,
    "ArgMax": extreme_place(largest=True),
    "ArgMin": extreme_place(largest=False),
    "CumSum": cumsum,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "GridSample": grid_sample_,
    "OneHot": one_hot,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TopK": top_k,
    "Trilu": trilu,
}
"""ONNX op -> builder."""
