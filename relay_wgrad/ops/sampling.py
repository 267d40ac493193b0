"""Images and volumes read at places that are computed: `grid_sample` of all front ends.

A place between pixels is the mean of the 2^d around it, weighted by how near they are.  `sample`
composes it of operators with gradients, by the data and by the places; `gradient` is that of
upstream's operator, which is one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, tirx

from ..ir import const_like

op = relax.op
Emit = Callable[[Any], Any]
BORDERS = ("zeros", "border", "reflection")
"""What stands outside, by ATen's numbers: zeros, the nearest pixel, or the image again and again,
turned round."""


def sample(
    emit: Emit, x: Any, grid: Any, axis: int, *, mode: str, border: str, corners: bool
) -> Any:
    """x (N, C, D…) at a grid's places from -1 to 1 over the image, (x, y, …) along `axis`.

    mode : "linear" or "nearest"; border : of `BORDERS`; corners : whether -1 and 1 are the centres
        of the outermost pixels, else their edges.
    """
    _, c, *sizes = (int(size) for size in x.ty.shape.values)
    rank, flat = len(sizes), _flat(emit, x)
    places = _places(emit, grid, axis, sizes, border, corners)
    shape = [int(size) for size in places[0].ty.shape.values]
    made = None
    for where, taps in _corners(emit, places, sizes, mode):
        weight = reduce(op.multiply, (tap.weight for tap in taps))
        found = emit(op.reshape(emit(op.take(flat, where, 0, "clip")), (*shape, c)))
        part = emit(op.multiply(found, emit(op.expand_dims(weight, rank + 1))))
        made = part if made is None else emit(op.add(made, part))
    return emit(op.permute_dims(made, [0, rank + 1, *range(1, rank + 1)]))


def gradient(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> list[Any]:
    """y = grid_sample(x, grid): a pixel gets its shares of what was read of it, a place what its
    pixels differ by."""
    a, (x, grid), emit = call.attrs, call.args, ctx.emit
    border, corners = str(a.padding_mode), bool(a.align_corners)
    known = all(all(map(_is_known, arg.ty.shape.values)) for arg in call.args)
    if not known or a.method != "bilinear" or border == "reflection":
        raise ValueError(
            "grid_sample: a gradient only with method=bilinear, zeros or the border around, and"
            f" known sizes, got {a.method}, {border}, {x.ty}, {grid.ty}"
        )
    n, c, *sizes = map(int, x.ty.shape.values)
    rank, flat, got = len(sizes), _flat(emit, x), _flat(emit, ct)
    places = _places(emit, grid, 1, sizes, border, corners)
    shape = [int(size) for size in places[0].ty.shape.values]
    rows, zero = math.prod(shape), const_like(0, grid)
    by_pixel: Any = op.zeros(flat.ty.shape, str(x.ty.dtype))
    by_place: list[Any] = [zero] * rank
    for where, taps in _corners(emit, places, sizes, "linear"):
        share = reduce(op.multiply, (tap.weight for tap in taps))
        share = emit(op.reshape(share, (rows, 1)))
        part = emit(op.grad.take_backward(emit(op.multiply(got, share)), flat, where, 0))
        by_pixel = emit(op.add(by_pixel, part))
        found = emit(op.multiply(emit(op.take(flat, where, 0, "clip")), got))
        change = emit(op.reshape(emit(op.sum(found, 1)), shape))
        for i, tap in enumerate(taps):
            others = (other.weight for other in taps if other is not tap)
            part = op.where(tap.inside, reduce(op.multiply, others, change), zero)
            by_place[i] = emit((op.add if tap.after else op.subtract)(by_place[i], part))
    for i, size in enumerate(sizes):
        if border == "border":
            high = const_like(size - 1, grid)
            moves = op.logical_and(op.greater(places[i], zero), op.less(places[i], high))
            by_place[i] = op.where(moves, by_place[i], zero)
        slope = const_like(_scale(size, corners)[0], grid)
        by_place[i] = emit(op.multiply(by_place[i], slope))
    wide = emit(op.reshape(by_pixel, (n, *sizes, c)))
    by_data = op.permute_dims(wide, [0, rank + 1, *range(1, rank + 1)])
    return [emit(by_data), op.stack(by_place[::-1], 1)]


def _is_known(size: Any) -> bool:
    return isinstance(size, (int, tirx.IntImm))


def _flat(emit: Emit, x: Any) -> Any:
    """(N, C, D…) as one row of channels for each pixel of each image."""
    n, c, *sizes = (int(size) for size in x.ty.shape.values)
    moved = op.permute_dims(x, [0, *range(2, len(sizes) + 2), 1])
    return emit(op.reshape(moved, (n * math.prod(sizes), c)))


class _Tap(NamedTuple):
    """One of the two pixels around a place along an axis, or the nearest."""

    index: Any  # 0 where it is outside
    weight: Any  # 0 where it is outside
    inside: Any
    after: int


def _corners(
    emit: Emit, places: Sequence[Any], sizes: Sequence[int], mode: str
) -> Iterator[tuple[Any, list[_Tap]]]:
    """The pixels that each place is the mean of: their rows, and what they are along each axis."""
    rank, shape = len(sizes), [int(size) for size in places[0].ty.shape.values]
    rows = np.arange(shape[0]) * math.prod(sizes)
    first = relax.const(rows.reshape(shape[0], *[1] * rank), "int64")
    for corner in range(1 << rank) if mode == "linear" else range(1):
        taps = [
            _tap(emit, place, size, mode, corner >> i & 1)
            for i, (place, size) in enumerate(zip(places, sizes, strict=True))
        ]
        index = taps[0].index
        for tap, size in zip(taps[1:], sizes[1:], strict=True):
            index = op.add(op.multiply(index, relax.const(size, "int64")), tap.index)
        yield emit(op.reshape(emit(op.add(first, index)), (math.prod(shape),))), taps


def _places(
    emit: Emit, grid: Any, axis: int, sizes: Sequence[int], border: str, corners: bool
) -> list[Any]:
    last = len(sizes) - 1  # of a grid's parts, x is the first and along the last axis
    return [
        _place(emit, grid, axis, last - i, size, border, corners) for i, size in enumerate(sizes)
    ]


def _scale(size: int, corners: bool) -> tuple[float, float]:
    """From -1 to 1 to pixels: a factor and what is added."""
    return ((size - 1) if corners else size) / 2, (size - 1) / 2


def _place(emit: Emit, grid: Any, axis: int, i: int, size: int, border: str, corners: bool) -> Any:
    """Where along an axis of pixels 0, 1, …; at a border with no gradient, as PyTorch's."""
    dtype, parts = str(grid.ty.dtype), int(grid.ty.shape.values[axis])

    def number(value: float) -> Any:
        return relax.const(value, dtype)

    split = emit(op.split(grid, parts, axis))
    v = emit(op.squeeze(emit(relax.TupleGetItem(split, i)), axis))
    v = reflected(emit, v) if border == "reflection" else v
    scale, shift = _scale(size, corners)
    v = emit(op.add(op.multiply(v, number(scale)), number(shift)))
    if border == "zeros":
        return v
    low, high = number(0), number(size - 1)
    return emit(op.where(op.greater(v, low), op.where(op.less(v, high), v, high), low))


def reflected(emit: Emit, places: Any) -> Any:
    """Places turned round at an image's ends until they are within.

    The image is [-1, 1], whatever corners are: a triangle of period 4.
    """
    one, two = (const_like(value, places) for value in (1, 2))
    half = emit(op.abs(op.divide(op.add(places, one), two)))
    turn = emit(op.subtract(half, op.multiply(two, op.floor(op.divide(half, two)))))
    return emit(op.subtract(one, op.multiply(two, op.abs(op.subtract(turn, one)))))


def _tap(emit: Emit, v: Any, size: int, mode: str, after: int) -> _Tap:
    """The pixel before or after a place, or nearest to it."""
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
    return _Tap(index, emit(op.where(inside, weight, zero)), inside, after)
