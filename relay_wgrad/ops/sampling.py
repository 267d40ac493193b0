"""Images and volumes read at places that are computed: `grid_sample` of all front ends.

A place between pixels is the mean of the 2^d around it, weighted by how near they are; it is
composed of operators with gradients of every order, by the data and by the places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

op = relax.op
Emit = Callable[[Any], Any]
BORDERS = ("zeros", "border", "reflection")
"""What stands outside: zeros, the nearest pixel, or the image again and again, turned round."""


def sample(
    emit: Emit, x: Any, grid: Any, axis: int, *, mode: str, border: str, corners: bool
) -> Any:
    """x (N, C, D…) at a grid's places from -1 to 1 over the image, (x, y, …) along `axis`.

    mode : "linear" or "nearest"; border : of `BORDERS`; corners : whether -1 and 1 are the centres
        of the outermost pixels, else their edges.
    """
    n, c, *sizes = (int(size) for size in x.ty.shape.values)
    rank, pixels = len(sizes), math.prod(sizes)
    flat = emit(op.reshape(op.permute_dims(x, [0, *range(2, rank + 2), 1]), (n * pixels, c)))
    places = [
        _place(emit, grid, axis, rank - 1 - i, size, border, corners)
        for i, size in enumerate(sizes)
    ]
    shape = [int(size) for size in places[0].ty.shape.values]
    first = relax.const((np.arange(n) * pixels).reshape(n, *[1] * rank), "int64")
    made = None
    for corner in range(1 << rank) if mode == "linear" else range(1):
        taps = [
            _tap(emit, place, size, mode, corner >> i & 1)
            for i, (place, size) in enumerate(zip(places, sizes, strict=True))
        ]
        index, weight = taps[0]
        for (at, share), size in zip(taps[1:], sizes[1:], strict=True):
            index = op.add(op.multiply(index, relax.const(size, "int64")), at)
            weight = op.multiply(weight, share)
        where = emit(op.reshape(emit(op.add(first, index)), (math.prod(shape),)))
        found = emit(op.reshape(emit(op.take(flat, where, 0, "clip")), (*shape, c)))
        part = emit(op.multiply(found, emit(op.expand_dims(weight, rank + 1))))
        made = part if made is None else emit(op.add(made, part))
    return emit(op.permute_dims(made, [0, rank + 1, *range(1, rank + 1)]))


def _place(emit: Emit, grid: Any, axis: int, i: int, size: int, border: str, corners: bool) -> Any:
    """Where along an axis of pixels 0, 1, …; at a border with no gradient, as PyTorch's."""
    dtype, parts = str(grid.ty.dtype), int(grid.ty.shape.values[axis])

    def number(value: float) -> Any:
        return relax.const(value, dtype)

    split = emit(op.split(grid, parts, axis))
    v = emit(op.squeeze(emit(relax.TupleGetItem(split, i)), axis))
    v = reflected(emit, v) if border == "reflection" else v
    scale, shift = ((size - 1) / 2, (size - 1) / 2) if corners else (size / 2, (size - 1) / 2)
    v = emit(op.add(op.multiply(v, number(scale)), number(shift)))
    if border == "zeros":
        return v
    low, high = number(0), number(size - 1)
    return emit(op.where(op.greater(v, low), op.where(op.less(v, high), v, high), low))


def reflected(emit: Emit, places: Any) -> Any:
    """Places turned round at an image's ends until they are within.

    The image is [-1, 1], whatever corners are: a triangle of period 4.
    """
    one, two = (relax.const(value, str(places.ty.dtype)) for value in (1, 2))
    half = emit(op.abs(op.divide(op.add(places, one), two)))
    turn = emit(op.subtract(half, op.multiply(two, op.floor(op.divide(half, two)))))
    return emit(op.subtract(one, op.multiply(two, op.abs(op.subtract(turn, one)))))


def _tap(emit: Emit, v: Any, size: int, mode: str, after: int) -> tuple[Any, Any]:
    """(the pixel before or after a place, or nearest to it, within the image, its weight)."""
    dtype = str(v.ty.dtype)
    whole = emit(op.grad.no_grad(emit((op.round if mode == "nearest" else op.floor)(v))))
    part = emit(op.subtract(v, whole))
    one, zero = relax.const(1, dtype), relax.const(0, dtype)
    weight = part if after else emit(op.subtract(one, part))
    weight = one if mode == "nearest" else weight
    pixel = emit(op.add(whole, one)) if after else whole
    inside = op.logical_and(op.greater_equal(pixel, zero), op.less(pixel, relax.const(size, dtype)))
    inside = emit(inside)
    index = emit(op.astype(op.where(inside, pixel, zero), "int64"))
    return index, emit(op.where(inside, weight, zero))
