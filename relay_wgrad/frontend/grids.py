"""PyTorch's `grid_sample` and ONNX's GridSample, and the grids of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..ops.sampling import BORDERS, sample
from .context import Context, shape_of

op = relax.op
_SMOOTH = ("linear", "bilinear")  # ONNX's name since opset 20, and before, which is PyTorch's
_OUTSIDE = "zeros, border or reflection"


def grid_sample(ctx: Context, x: Any, grid: Any, *, mode: str, border: str, corners: bool) -> Any:
    """Images (N, C, H, W) or volumes at (x, y) of a grid (N, P, Q, 2), from -1 to 1 over them.

    mode : "linear", "bilinear" (the same) or "nearest"; border : of `BORDERS`; corners : whether -1
        and 1 are the centres of the outermost pixels, else their edges.

    Raises ValueError for other modes and an open batch.
    """
    shape, places = shape_of(x), shape_of(grid)
    if mode not in (*_SMOOTH, "nearest") or border not in BORDERS:
        smooth = mode if mode in _SMOOTH else "bilinear"
        raise ValueError(f"mode {mode!r} with padding {border!r}: {smooth} or nearest, {_OUTSIDE}")
    rank = len(shape) - 2
    if rank not in (2, 3) or (places[0], places[-1:]) != (shape[0], (rank,)):
        raise ValueError(
            f"a grid {list(places)} of {list(shape)}: only images and volumes are supported"
        )
    if not all(isinstance(size, int) for size in shape):
        raise ValueError("places in an open batch are not supported")
    kind = "linear" if mode in _SMOOTH else mode
    return sample(ctx.emit, x, grid, rank + 1, mode=kind, border=border, corners=corners)


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
