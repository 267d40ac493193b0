"""ATen's assignments to places: of constant indices tables, of masks, and of one computed index for
each line of an axis, choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...ir import constant
from ..context import Context, shape_of
from ..data_movement import broadcast, cut
from ..indexing import constant_indices, line_along, line_of, placed
from ..weights import Array
from .call import Builder, Call, as_dtype

op = relax.op


def _constant(index: Any) -> Array:
    places = constant_indices(index)
    if places is None:
        raise ValueError("only at places that are known on import")
    return places


def at_indices(ctx: Context, source: Any, shape: Sequence[int]) -> Any:
    """A scatter's source, or its number, of the indices' shape: what is beyond is not read."""
    if not shape_of(source):
        return ctx.emit(op.broadcast_to(source, shape))
    for a, n in enumerate(shape):
        source = cut(ctx, source, a, 0, n)
    return source


def _scattered(adds: bool) -> Builder:
    """(x, axis, indices, source): along the axis, by indices of x's rank."""

    def build(ctx: Context, call: Call) -> Any:
        x, indices = call.args[0], call.args[2]
        axis = int(call.args[1]) % len(shape_of(x))
        lines = [1 if a == axis else n for a, n in enumerate(shape_of(x))]
        if constant_indices(indices) is None and list(shape_of(indices)) == lines:
            source = as_dtype(ctx, call.args[3], call.dtype)
            return _one_of_a_line(ctx, x, axis, indices, source, adds)
        places = _constant(indices)
        source = at_indices(ctx, as_dtype(ctx, call.args[3], call.dtype), places.shape)
        return placed(ctx, x, source, line_along(places, axis, shape_of(x)), (), adds=adds)

    return build


def _one_of_a_line(ctx: Context, x: Any, axis: int, index: Any, source: Any, adds: bool) -> Any:
    """x, where each line along the axis has one element from the source, or added to: a class's."""
    count = shape_of(x)[axis]
    places = np.arange(count).reshape([-1 if a == axis else 1 for a in range(len(shape_of(x)))])
    hit = ctx.emit(op.equal(index, constant(places, str(index.ty.dtype))))
    source = at_indices(ctx, source, shape_of(index))
    if not adds:
        return ctx.emit(op.where(hit, source, x))
    nothing = constant(0, str(x.ty.dtype))
    return ctx.emit(op.add(x, ctx.emit(op.where(hit, source, nothing))))


def _index_add(ctx: Context, call: Call) -> Any:
    """(x, axis, index, source), with `alpha`: whole slices."""
    x, places = call.args[0], _constant(call.args[2])
    shape, axis = shape_of(x), int(call.args[1]) % len(shape_of(x))
    source = as_dtype(ctx, call.args[3], call.dtype)
    if (alpha := call.setting("alpha", 1)) != 1:
        source = ctx.emit(op.multiply(source, ctx.const(float(alpha))))
    order = [axis, *(a for a in range(len(shape)) if a != axis)]
    x, source = (ctx.emit(op.permute_dims(t, order)) for t in (x, source))
    linear = line_of(places.reshape(-1, 1), shape[axis : axis + 1])
    made = placed(ctx, x, source, linear, shape_of(x)[1:], adds=True)
    return ctx.emit(op.permute_dims(made, [order.index(a) for a in range(len(shape))]))


def _index_put(ctx: Context, call: Call) -> Any:
    """(x, indices or None for a whole axis, values, whether they are added)."""
    x, given, adds = call.args[0], list(call.args[1]), bool(call.arg(3, False))
    values, size = as_dtype(ctx, call.args[2], call.dtype), shape_of(x)
    axes = [a for a, index in enumerate(given) if index is not None]
    if str(given[axes[0]].ty.dtype) == "bool":
        return _masked(ctx, x, given, axes, values, adds)
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise ValueError("by indices of axes that are not neighbours")
    arrays = np.broadcast_arrays(*(_constant(given[a]) for a in axes))
    turned, moved, order = arranged(ctx, x, axes, arrays[0].shape, values)
    linear = line_of(np.stack(arrays, -1), [size[a] for a in axes]).reshape(-1)
    made = placed(ctx, turned, moved, linear, shape_of(turned)[len(axes) :], adds=adds)
    return ctx.emit(op.permute_dims(made, np.argsort(order).tolist()))


def arranged(
    ctx: Context, x: Any, axes: list[int], shape: tuple[int, ...], values: Any
) -> tuple[Any, Any, list[int]]:
    """(x with the indexed axes first, the values with those of the indices first, x's axes in that
    order), of indices of this shape; values are broadcast."""
    size, (first, *_), count = shape_of(x), axes, len(axes)
    order = [*axes, *(a for a in range(len(size)) if a not in axes)]
    wide = (*size[:first], *shape, *size[first + count :])
    if axes != list(range(first, first + count)):  # PyTorch: then the indices' axes come first
        first, wide = 0, (*shape, *(size[a] for a in order[count:]))
    inner = range(first, first + len(shape))
    moved = [*inner, *(a for a in range(len(wide)) if a not in inner)]
    values = ctx.emit(op.permute_dims(broadcast(ctx, values, wide), moved))
    return ctx.emit(op.permute_dims(x, order)), values, order


def _masked(
    ctx: Context, x: Any, given: list[Any], axes: list[int], values: Any, adds: bool
) -> Any:
    """x with one number, or one for each of the last axes, where a mask of the first ones holds."""
    if axes != [0] or adds:
        raise ValueError("by a mask together with other indices")
    mask, size = given[0], shape_of(x)
    rest = size[len(shape_of(mask)) :]
    if math.prod(shape_of(values)) != 1 and tuple(shape_of(values)) != tuple(rest):
        raise ValueError("by a mask: as many values as there are places are not known on import")
    mask = ctx.emit(op.reshape(mask, (*shape_of(mask), *(1,) * len(rest))))
    if math.prod(shape_of(values)) == 1:
        values = ctx.emit(op.reshape(values, ()))
    return ctx.emit(op.where(mask, values, x))


PLACING: dict[str, Builder] = {
    "index_add.default": _index_add,
    "index_put.default": _index_put,
    "scatter.src": _scattered(adds=False),
    "scatter.value": _scattered(adds=False),
    "scatter_add.default": _scattered(adds=True),
}
"""ATen overload -> builder."""
