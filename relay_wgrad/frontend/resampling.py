"""`relax.nn.resample` as front ends use it: by matrices, by places along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..dtypes import wide_of
from ..ops.resample import resample, table_of
from .context import Context, shape_of
from .data_movement import take_constant
from .weights import Array

_SPARE, _SMALL = 16, 1 << 20  # a transpose's table: so many times the elements, or so large
_INTEGERS = ("bool", "int8", "uint8", "int16", "int32", "int64")


def by_matrix(ctx: Context, x: Any, axis: int, matrix: Array) -> Any:
    """The matrix (P, H) times x along an axis of H; x itself where that changes nothing."""
    if matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix))):
        return x
    return _resampled(ctx, x, axis, *table_of(matrix))


def at_places(ctx: Context, x: Any, axis: int, places: Sequence[int]) -> Any:
    """x's elements at these places of an axis, each from 0 on, in any order, any number of times.

    Its gradient reads what it sums, where that of `take` writes into what others write.
    """
    places = [int(p) for p in places]
    if places == list(range(places[0], places[0] + len(places))):
        return take_constant(ctx, x, axis, places)
    # Where few elements are taken very often, the transpose's table would be mostly empty.
    size = shape_of(x)[axis]
    table = int(np.bincount(places, minlength=size).max()) * size
    if str(x.ty.dtype) in _INTEGERS or table > max(_SPARE * (size + len(places)), _SMALL):
        index = relax.const(np.asarray(places, "int64"), "int64")
        return ctx.emit(relax.op.take(x, index, axis))
    index = np.asarray(places, "int32")[:, None]
    return _resampled(ctx, x, axis, index, np.ones(index.shape))


def border_places(size: int, widths: tuple[int, int], mode: str) -> Array:
    """Of an axis with a border of what is inside, each element's place without it.

    mode : `numpy.pad`'s, "reflect", "edge" or "wrap".
    """
    return np.asarray(np.pad(np.arange(size), widths, mode=mode))  # type: ignore[call-overload]


def padded(ctx: Context, x: Any, widths: Sequence[tuple[int, int]], mode: str) -> Any:
    """x with a border of what is inside: (before, after) for each axis, not negative."""
    for axis, (before, after) in enumerate(widths):
        if before or after:
            places = border_places(shape_of(x)[axis], (before, after), mode)
            x = at_places(ctx, x, axis, places.tolist())
    return x


def chosen_matrix(places: Array, size: int) -> Array:
    """(P, size), which takes the elements at these places of an axis."""
    return np.asarray(np.asarray(places)[:, None] == np.arange(size), "float64")


def adaptive_matrix(size: int, count: int) -> Array:
    """(count, size): the means of parts of an axis, as even as can be; neighbours may overlap."""
    part, here = np.arange(count)[:, None], np.arange(size)
    inside = (here >= part * size // count) & (here < -(-(part + 1) * size // count))
    return np.asarray(inside / inside.sum(1, keepdims=True))


def folded(
    ctx: Context, x: Any, size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
    pads: Sequence[int], stride: Sequence[int],
) -> Any:  # fmt: skip
    """Windows (N, C R S, windows) summed where they lay in images of this size; `pads` before both
    axes, then after.

    Raises ValueError for another number of windows than the sizes have.
    """
    n, rows, windows = shape_of(x)
    c = rows // math.prod(kernel)
    spans = [
        (size[i] + pads[i] + pads[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    if rows % math.prod(kernel) or windows != math.prod(spans):
        raise ValueError(
            f"{list(shape_of(x))} are not windows of {list(kernel)}, {spans} of them for each image"
        )
    apart = ctx.emit(relax.op.reshape(x, (n, c, *kernel, *spans)))
    whole = ctx.emit(relax.op.permute_dims(apart, [0, 1, 2, 4, 3, 5]))
    x = ctx.emit(relax.op.reshape(whole, (n, c, kernel[0] * spans[0], kernel[1] * spans[1])))
    for i in range(2):
        r, p = np.divmod(np.arange(kernel[i] * spans[i]), spans[i])
        place = r * dilation[i] + p * stride[i] - pads[i]
        x = by_matrix(ctx, x, 2 + i, chosen_matrix(place, size[i]).T)
    return x


def _resampled(ctx: Context, x: Any, axis: int, index: Array, weight: Array) -> Any:
    wide = wide_of(str(x.ty.dtype))
    tables = relax.const(index, "int32"), relax.const(weight.astype(wide), wide)
    return ctx.emit(resample(x, *tables, axis))
