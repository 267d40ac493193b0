"""Elements of a tensor by indices: constants become tables, others are computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..dtypes import FLOATS
from ..ops.resample import resample
from .context import Context, shape_of
from .resampling import at_places
from .sizes import number
from .weights import Array

op = relax.op


def constant_indices(index: Any) -> Array | None:
    """The values of indices that are constants."""
    return np.asarray(index.value.numpy()) if isinstance(index, tvm.ir.Constant) else None


def wrapped(ctx: Context, index: Any, size: Any) -> Any:
    """Indices from 0 on: negative ones count from the end."""
    dtype = str(index.ty.dtype)
    below = ctx.emit(op.less(index, relax.const(0, dtype)))
    return ctx.emit(op.where(below, op.add(index, number([size], dtype, ctx.emit)), index))


def take_along(ctx: Context, x: Any, axis: int, index: Any) -> Any:
    """x's elements along an axis, by indices of any shape, which takes the axis' place; negative
    ones count from the end.

    Raises ValueError for a constant index that the axis does not have.
    """
    return at(ctx, x, axis, index if constant_indices(index) is not None
              else wrapped(ctx, index, shape_of(x)[axis]))  # fmt: skip


def at(ctx: Context, x: Any, axis: int, index: Any) -> Any:
    """`take_along`, but an index that is not constant must be from 0 on."""
    shape, places = shape_of(x), constant_indices(index)
    if places is not None:
        out = at_places(ctx, x, axis, checked(places, shape[axis]).reshape(-1).tolist())
    else:
        flat = ctx.emit(op.reshape(index, (math.prod(shape_of(index)),)))
        out = ctx.emit(op.take(x, flat, axis))
    wanted = (*shape[:axis], *shape_of(index), *shape[axis + 1 :])
    return out if wanted == shape_of(out) else ctx.emit(op.reshape(out, wanted))


def checked(places: Array, size: int) -> Array:
    """Constant indices from 0 on.  Raises ValueError for one that an axis of `size` lacks."""
    if places.dtype.kind not in "iu" or not places.size:
        raise ValueError(f"indices of {places.dtype}{list(places.shape)}: expected integers")
    if places.min() < -size or places.max() >= size:
        wrong = int(places.max() if places.max() >= size else places.min())
        raise ValueError(f"index {wrong} of an axis of {size}")
    return places % size


def gathered(ctx: Context, x: Any, axis: int, index: Any) -> Any:
    """Each element from the place along the axis that `index`, of x's rank, has there."""
    shape, some = shape_of(x), shape_of(index)
    strides = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
    base = sum(
        np.arange(n).reshape([-1 if b == a else 1 for b in range(len(some))]) * strides[a]
        for a, n in enumerate(some) if a != axis
    )  # fmt: skip
    base = np.broadcast_to(np.asarray(base, "int64"), some)
    flat = ctx.emit(op.reshape(x, (math.prod(shape),)))
    places = constant_indices(index)
    if places is not None:
        linear: Any = relax.const(base + checked(places, shape[axis]) * strides[axis], "int64")
    else:
        place = wrapped(ctx, ctx.emit(op.astype(index, "int64")), shape[axis])
        step = op.multiply(place, relax.const(strides[axis], "int64"))
        linear = ctx.emit(op.add(step, relax.const(base, "int64")))
    return at(ctx, flat, 0, linear)


def line(ctx: Context, indices: Sequence[Any], sizes: Sequence[int]) -> Any:
    """The places that several indices, one for each of the sizes, name among all elements."""
    arrays = [constant_indices(index) for index in indices]
    if all(places is not None for places in arrays):
        table = np.stack(np.broadcast_arrays(*(np.asarray(places) for places in arrays)), -1)
        return relax.const(line_of(table, sizes), "int64")
    total = None
    for index, size in zip(indices, sizes, strict=True):
        if str(index.ty.dtype) != "int64":
            index = ctx.emit(op.astype(index, "int64"))
        place = wrapped(ctx, index, size)
        if total is not None:
            place = ctx.emit(op.add(op.multiply(total, relax.const(size, "int64")), place))
        total = place
    return total


def line_of(places: Array, sizes: Sequence[int]) -> Array:
    """Places by several indices (…, depth) as one."""
    parts = [checked(places[..., i], size) for i, size in enumerate(sizes)]
    return np.asarray(np.ravel_multi_index(parts, tuple(sizes)), "int64")


def line_along(places: Array, axis: int, shape: Sequence[int]) -> Array:
    """Of a tensor of indices along one axis, each element's place in the flat tensor."""
    grid: list[Any] = list(np.indices(places.shape))
    grid[axis] = checked(places, shape[axis])
    return np.asarray(np.ravel_multi_index(grid, tuple(shape)).reshape(-1), "int64")


def placed(
    ctx: Context, x: Any, updates: Any, linear: Array, rest: Sequence[int], *, adds: bool
) -> Any:
    """x as rows of `rest`, with the updates' rows at `linear`; of several for one place the last
    one counts, or all are added.

    Raises ValueError for what is no float, and updates that do not fit.
    """
    shape = shape_of(x)
    if str(x.ty.dtype) not in FLOATS:
        raise ValueError(f"{x.ty.dtype}: only floats are supported")
    rows = math.prod(shape) // math.prod(rest)
    if math.prod(shape_of(updates)) != len(linear) * math.prod(rest):
        raise ValueError(f"updates of {list(shape_of(updates))} do not fit {len(linear)} places")
    numbers: list[list[int]] = [[] for _ in range(rows)]
    for i, place in enumerate(linear.tolist()):
        numbers[place] = [*numbers[place], i] if adds else [i]
    index = np.full((rows, max(1, *map(len, numbers))), -1, "int32")
    for row, some in enumerate(numbers):
        index[row, : len(some)] = some
    wide = "float64" if str(x.ty.dtype) == "float64" else "float32"
    given = ctx.emit(op.reshape(updates, (len(linear), *rest)))
    tables = relax.const(index, "int32"), relax.const((index >= 0).astype(wide), wide)
    there = ctx.emit(resample(given, *tables, 0))
    whole = ctx.emit(op.reshape(x, (rows, *rest)))
    if adds:
        made = ctx.emit(op.add(whole, there))
    else:
        taken_there = (index[:, 0] >= 0).reshape(rows, *[1] * len(rest))
        made = ctx.emit(op.where(relax.const(taken_there, "bool"), there, whole))
    return ctx.emit(op.reshape(made, shape))
