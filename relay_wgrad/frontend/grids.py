"""Images read at places that are computed, as PyTorch's `grid_sample` and ONNX's GridSample do."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .context import Context, shape_of
from .indexing import at

op = relax.op
_SMOOTH = ("linear", "bilinear")  # ONNX's name since opset 20, and before, which is PyTorch's


def grid_sample(ctx: Context, x: Any, grid: Any, *, mode: str, border: str, corners: bool) -> Any:
    """Images (N, C, H, W) at (x, y) of a grid (N, P, Q, 2), from -1 to 1 over the image.

    mode : "linear", "bilinear" (the same) or "nearest"; border : "zeros", or the nearest pixel of
        the "border"; corners : whether -1 and 1 are the centres of the outermost pixels, else their
        edges.

    Raises ValueError for other modes, volumes and an open batch.
    """
    shape, places = shape_of(x), shape_of(grid)
    if mode not in (*_SMOOTH, "nearest") or border not in ("zeros", "border"):
        smooth = mode if mode in _SMOOTH else "bilinear"
        raise ValueError(
            f"mode {mode!r} with padding {border!r}: {smooth} or nearest, zeros or border"
        )
    mode = "linear" if mode in _SMOOTH else mode
    if len(shape) != 4 or places[0] != shape[0] or places[3:] != (2,):
        raise ValueError(f"a grid {list(places)} of {list(shape)}: only images are supported")
    if not all(isinstance(size, int) for size in shape):
        raise ValueError("places in an open batch are not supported")
    n, c, h, w = shape
    flat = ctx.emit(op.reshape(op.permute_dims(x, [0, 2, 3, 1]), (n * h * w, c)))
    first = relax.const((np.arange(n) * h * w).reshape(n, 1, 1), "int64")
    axes = [_place(ctx, grid, i, size, border, corners) for i, size in ((1, h), (0, w))]
    made = None
    for corner in range(4) if mode == "linear" else range(1):
        taken = [_tap(ctx, v, s, mode, corner >> i & 1)
                 for i, (v, s) in enumerate(zip(axes, (h, w), strict=True))]  # fmt: skip
        (row, of_row), (column, of_column) = taken
        index = op.add(op.multiply(row, relax.const(w, "int64")), column)
        found = at(ctx, flat, 0, ctx.emit(op.add(first, index)))
        weight = ctx.emit(op.expand_dims(op.multiply(of_row, of_column), 3))
        part = ctx.emit(op.multiply(found, weight))
        made = part if made is None else ctx.emit(op.add(made, part))
    return ctx.emit(op.permute_dims(made, [0, 3, 1, 2]))


def _place(ctx: Context, grid: Any, i: int, size: int, border: str, corners: bool) -> Any:
    """Where along an axis of pixels 0, 1, …; at a border with no gradient, as PyTorch's."""
    n, p, q, _ = shape_of(grid)
    dtype = str(grid.ty.dtype)
    parts = ctx.emit(op.split(grid, 2, 3))
    v = ctx.emit(op.reshape(ctx.emit(relax.TupleGetItem(parts, i)), (n, p, q)))
    scale, shift = ((size - 1) / 2, (size - 1) / 2) if corners else (size / 2, (size - 1) / 2)
    v = ctx.emit(op.add(op.multiply(v, relax.const(scale, dtype)), relax.const(shift, dtype)))
    if border == "zeros":
        return v
    low, high = relax.const(0, dtype), relax.const(size - 1, dtype)
    return ctx.emit(op.where(op.greater(v, low), op.where(op.less(v, high), v, high), low))


def _tap(ctx: Context, v: Any, size: int, mode: str, after: int) -> tuple[Any, Any]:
    """(the pixel before or after a place, or nearest to it, within the image, its weight)."""
    dtype = str(v.ty.dtype)
    whole = ctx.emit(op.grad.no_grad(ctx.emit((op.round if mode == "nearest" else op.floor)(v))))
    part = ctx.emit(op.subtract(v, whole))
    one, zero = relax.const(1, dtype), relax.const(0, dtype)
    weight = part if after else ctx.emit(op.subtract(one, part))
    weight = one if mode == "nearest" else weight
    pixel = ctx.emit(op.add(whole, one)) if after else whole
    inside = op.logical_and(op.greater_equal(pixel, zero), op.less(pixel, relax.const(size, dtype)))
    inside = ctx.emit(inside)
    index = ctx.emit(op.astype(op.where(inside, pixel, zero), "int64"))
    return index, ctx.emit(op.where(inside, weight, zero))


def affine_grid(ctx: Context, theta: Any, size: tuple[int, int], corners: bool) -> Any:
    """The grid (N, H, W, 2) of matrices (N, 2, 3) for images of this size."""
    lines = []
    for n in size:
        line = np.linspace(-1, 1, n) if corners else (2 * np.arange(n) + 1) / n - 1
        lines.append(line if n > 1 else np.zeros(1))
    y, x = np.meshgrid(*lines, indexing="ij")
    base = np.stack([x, y, np.ones(size)], -1).reshape(-1, 3)
    turned = ctx.emit(op.permute_dims(theta, [0, 2, 1]))
    made = ctx.emit(op.matmul(ctx.const(base), turned))
    return ctx.emit(op.reshape(made, (shape_of(theta)[0], *size, 2)))
