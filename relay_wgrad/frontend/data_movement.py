"""Parts and copies of a tensor, in ops that have gradients of any order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..ops.auxiliary import axis_slice
from .context import Context, shape_of
from .sizes import factor_and_power, is_open, same, simplified

op = relax.op
ENDLESS = (1 << 31) - 1
"""Slices to this and beyond end where the axis does."""


def cut(ctx: Context, x: Any, axis: int, start: Any, stop: Any, step: int = 1) -> Any:
    """x[start:stop:step] along an axis; of an open batch at multiples of it.

    Raises ValueError for another part of the batch.
    """
    size = shape_of(x)[axis]
    if same(start, 0) and step == 1 and same(stop, size):
        return x
    if is_open((size, start, stop)):
        return _part_of_batch(ctx, x, axis, start, stop, step)
    if step == 1:  # a part of a split: its gradient is a concatenation
        cuts = [c for c in (start, stop) if 0 < c < size]
        parts = ctx.emit(op.split(x, cuts, axis))
        return ctx.emit(relax.TupleGetItem(parts, 1 if start > 0 else 0))
    return ctx.emit(op.strided_slice(x, [axis], [start], [stop], [step]))


def _part_of_batch(ctx: Context, x: Any, axis: int, start: Any, stop: Any, step: int) -> Any:
    shape = shape_of(x)
    try:
        (first, _), (last, _), (whole, power) = map(factor_and_power, (start, stop, shape[axis]))
        is_part = power == 1 and 0 <= first < last <= whole and step == 1
        is_part = is_part and (first == 0 or not isinstance(start, int))
    except ValueError:
        is_part = False
    if not is_part or isinstance(stop, int):
        raise ValueError("a part of the batch is taken")
    made = [*shape[:axis], simplified(stop - start), *shape[axis + 1 :]]
    return axis_slice(ctx.emit, x, axis, start, stop, made)


def slice_bound(given: Any, size: Any) -> Any:
    """A bound of a slice, None for the end, from the start of an axis that is open."""
    if given is None or (isinstance(given, int) and given >= ENDLESS):
        return size
    (times, power), (whole, _) = factor_and_power(given), factor_and_power(size)
    if power and times >= whole:
        return size
    return simplified(size + given) if times < 0 else given


def split(ctx: Context, x: Any, axis: int, sizes: Sequence[Any]) -> list[Any]:
    """x in parts of these sizes along an axis."""
    ends = list(itertools.accumulate(sizes))
    if len(sizes) == 1:
        return [x]
    if is_open(ends):
        return [
            cut(ctx, x, axis, *ends) for ends in itertools.pairwise([0, *map(simplified, ends)])
        ]
    made = ctx.emit(op.split(x, ends[:-1], axis))
    return [ctx.emit(relax.TupleGetItem(made, i)) for i in range(len(sizes))]


def rolled(ctx: Context, x: Any, axis: int, shift: int) -> Any:
    """x with its elements moved on by `shift` along an axis, the last ones to the front."""
    shape = shape_of(x)
    size = shape[axis]
    if isinstance(size, int):
        at = -shift % size
        return ctx.emit(op.concat(split(ctx, x, axis, [at, size - at])[::-1], axis)) if at else x
    at = tirx.floormod(tirx.const(-shift, "int64"), size)
    ends, rest = [(at, size), (0, at)], (shape[:axis], shape[axis + 1 :])
    turned = [axis_slice(ctx.emit, x, axis, a, b, [*rest[0], b - a, *rest[1]]) for a, b in ends]
    return ctx.emit(op.reshape(ctx.emit(op.concat(turned, axis)), shape))


def take_constant(ctx: Context, x: Any, axis: int, indices: Sequence[int]) -> Any:
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


def depth_to_space(ctx: Context, x: Any, block: int, *, channels_first: bool) -> Any:
    """Channels of images as blocks of pixels, within an axis of which the channels come first
    (PyTorch's pixel_shuffle) or the block's places do."""
    n, c, h, w = shape_of(x)
    c //= block**2
    apart = (n, c, block, block, h, w) if channels_first else (n, block, block, c, h, w)
    order = [0, 1, 4, 2, 5, 3] if channels_first else [0, 3, 4, 1, 5, 2]
    turned = ctx.emit(op.permute_dims(ctx.emit(op.reshape(x, apart)), order))
    return ctx.emit(op.reshape(turned, (n, c, h * block, w * block)))


def space_to_depth(ctx: Context, x: Any, block: int, *, channels_first: bool) -> Any:
    """The same backwards."""
    n, c, h, w = shape_of(x)
    h, w = h // block, w // block
    apart = ctx.emit(op.reshape(x, (n, c, h, block, w, block)))
    order = [0, 1, 3, 5, 2, 4] if channels_first else [0, 3, 5, 1, 2, 4]
    return ctx.emit(op.reshape(op.permute_dims(apart, order), (n, c * block**2, h, w)))


def broadcast(ctx: Context, x: Any, shape: Sequence[int]) -> Any:
    """x in a larger shape; as it is where it has that."""
    own = shape_of(x)
    if len(own) == len(shape) and all(map(same, own, shape)):
        return x
    return ctx.emit(op.broadcast_to(x, tuple(shape)))
