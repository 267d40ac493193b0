"""Parts and copies of a tensor, in ops that have gradients of any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from .context import Context, shape_of
from .sizes import same

op = relax.op


def cut(ctx: Context, x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """x[start:stop:step] along an axis."""
    size = shape_of(x)[axis]
    if start == 0 and step == 1 and same(stop, size):
        return x
    if not isinstance(size, int):
        raise ValueError("a part of the batch is taken")
    if step == 1:  # a part of a split: its gradient is a concatenation
        cuts = [c for c in (start, stop) if 0 < c < size]
        parts = ctx.emit(op.split(x, cuts, axis))
        return ctx.emit(relax.TupleGetItem(parts, 1 if start > 0 else 0))
    return ctx.emit(op.strided_slice(x, [axis], [start], [stop], [step]))


def chosen(ctx: Context, x: Any, axis: int, indices: Sequence[int]) -> Any:
    """x's elements at these indices of an axis, each from 0 on."""
    first = indices[0]
    if list(indices) == list(range(first, first + len(indices))):
        return cut(ctx, x, axis, first, first + len(indices))
    places = relax.const(np.asarray(indices, "int64"), "int64")
    return ctx.emit(op.take(x, places, axis))


def repeated(ctx: Context, x: Any, times: Sequence[int]) -> Any:
    """Whole copies along each axis: a new axis before each, broadcast, then merged."""
    shape = [1] * (len(times) - len(shape_of(x))) + list(shape_of(x))
    apart = [size for s in shape for size in (1, s)]
    wide = [size for t, s in zip(times, shape, strict=True) for size in (t, s)]
    x = ctx.emit(op.reshape(x, apart))
    whole = [t * s for t, s in zip(times, shape, strict=True)]
    return ctx.emit(op.reshape(ctx.emit(op.broadcast_to(x, wide)), whole))


def broadcast(ctx: Context, x: Any, shape: Sequence[int]) -> Any:
    """x in a larger shape; as it is where it has that."""
    own = shape_of(x)
    if len(own) == len(shape) and all(map(same, own, shape)):
        return x
    return ctx.emit(op.broadcast_to(x, tuple(shape)))
