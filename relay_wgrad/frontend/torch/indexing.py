"""ATen's ways to choose elements by indices: constants become tables, others are computed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..context import Context, shape_of
from ..resampled import at_places
from ..weights import Array
from .call import Builder, Call, constant

op = relax.op


def known(index: Any) -> Array | None:
    """The values of indices that are constants."""
    return np.asarray(index.value.numpy()) if isinstance(index, tvm.ir.Constant) else None


def _taken(ctx: Context, x: Any, axis: int, index: Any) -> Any:
    """x's elements along an axis, by indices of one axis, negative ones from the end."""
    size = shape_of(x)[axis]
    places = known(index)
    if places is not None:
        return at_places(ctx, x, axis, (places.reshape(-1) % size).tolist())
    return ctx.emit(op.take(x, _wrapped(ctx, index, size), axis))


def _wrapped(ctx: Context, index: Any, size: int) -> Any:
    dtype = str(index.ty.dtype)
    below = ctx.emit(op.less(index, constant(0, dtype)))
    return ctx.emit(op.where(below, op.add(index, constant(size, dtype)), index))


def _flat(ctx: Context, index: Any) -> Any:
    return ctx.emit(op.reshape(index, (math.prod(shape_of(index)),)))


def _index(ctx: Context, call: Call) -> Any:
    """x[…, a, b, …] with tensors of indices, broadcast together; None: a whole axis."""
    x, given = call.args[0], list(call.args[1])
    shape = shape_of(x)
    axes = [i for i, index in enumerate(given) if index is not None]
    indices = [given[i] for i in axes]
    if any(str(index.ty.dtype) == "bool" for index in indices):
        raise ValueError("by a mask the number of elements is not known on import")
    sizes = [shape[a] for a in axes]
    first = axes[0]
    if axes != list(range(first, first + len(axes))):  # PyTorch: then the indices' axes come first
        rest = [a for a in range(len(shape)) if a not in axes]
        x, first = ctx.emit(op.permute_dims(x, [*axes, *rest])), 0
        shape = shape_of(x)
    behind = shape[first + len(axes) :]
    x = ctx.emit(op.reshape(x, (*shape[:first], math.prod(sizes), *behind)))
    arrays = [known(index) for index in indices]
    if all(a is not None for a in arrays):
        turned = [a % size for a, size in zip(arrays, sizes, strict=True) if a is not None]
        places = np.ravel_multi_index(np.broadcast_arrays(*turned), sizes)
        out = at_places(ctx, x, first, places.reshape(-1).tolist())
    else:
        total = None
        for index, size in zip(indices, sizes, strict=True):
            wrapped = _wrapped(ctx, ctx.emit(op.astype(index, "int64")), size)
            if total is not None:
                wrapped = ctx.emit(op.add(op.multiply(total, constant(size, "int64")), wrapped))
            total = wrapped
        out = ctx.emit(op.take(x, _flat(ctx, total), first))
    return ctx.emit(op.reshape(out, call.shape))


def _gather(ctx: Context, call: Call) -> Any:
    """(x, axis, index): each element from the place along the axis that `index` has there."""
    x, index = call.args[0], call.args[2]
    shape, taken = shape_of(x), shape_of(index)
    axis = int(call.args[1]) % len(shape)
    strides = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
    base = sum(
        np.arange(n).reshape([-1 if b == a else 1 for b in range(len(taken))]) * strides[a]
        for a, n in enumerate(taken) if a != axis
    )  # fmt: skip
    base = np.broadcast_to(np.asarray(base, "int64"), taken)
    flat = ctx.emit(op.reshape(x, (math.prod(shape),)))
    places = known(index)
    if places is not None:
        linear = base + places % shape[axis] * strides[axis]
        out = at_places(ctx, flat, 0, linear.reshape(-1).tolist())
    else:
        step = op.multiply(_wrapped(ctx, index, shape[axis]), constant(strides[axis], "int64"))
        linear = ctx.emit(op.add(step, constant(base, "int64")))
        out = ctx.emit(op.take(flat, _flat(ctx, linear), 0))
    return ctx.emit(op.reshape(out, call.shape))


def _index_select(ctx: Context, call: Call) -> Any:
    axis = int(call.args[1]) % len(call.shape)
    return _taken(ctx, call.args[0], axis, call.args[2])


def _embedding(ctx: Context, call: Call) -> Any:
    """Rows of a table; the indices are integers."""
    if int(call.arg(2, -1)) >= 0:
        raise ValueError("padding_idx stops the gradient of one row: not supported")
    table, index = call.args[0], call.args[1]
    places = known(index)
    if places is None:
        rows = ctx.emit(op.take(table, _flat(ctx, index), 0))
    else:
        rows = at_places(ctx, table, 0, places.reshape(-1).tolist())
    return ctx.emit(op.reshape(rows, call.shape))


def _flip(ctx: Context, call: Call) -> Any:
    x, rank = call.args[0], len(call.shape)
    for axis in call.args[1]:
        x = at_places(ctx, x, int(axis) % rank, range(call.shape[int(axis) % rank])[::-1])
    return x


INDEXING: dict[str, Builder] = {
    "embedding.default": _embedding,
    "flip.default": _flip,
    "gather.default": _gather,
    "index.Tensor": _index,
    "index_select.default": _index_select,
}
"""ATen overload -> builder."""
