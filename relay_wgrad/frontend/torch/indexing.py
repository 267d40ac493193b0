"""ATen's ways to choose elements by indices: constants become tables, others are computed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ops.sampling import BORDERS
from ..context import Context, shape_of
from ..grids import grid_sample
from ..indexing import at, gathered, line, take_along
from ..resampling import at_places
from .call import Builder, Call

op = relax.op


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
    out = at(ctx, x, first, line(ctx, indices, sizes))
    return ctx.emit(op.reshape(out, call.shape))


def _gather(ctx: Context, call: Call) -> Any:
    """(x, axis, index): each element from the place along the axis that `index` has there."""
    x, index = call.args[0], call.args[2]
    return gathered(ctx, x, int(call.args[1]) % len(shape_of(x)), index)


def _index_select(ctx: Context, call: Call) -> Any:
    axis = int(call.args[1]) % len(call.shape)
    return take_along(ctx, call.args[0], axis, call.args[2])


def _embedding(ctx: Context, call: Call) -> Any:
    """Rows of a table; the indices are integers.  The row `padding_idx` has no gradient."""
    table, row = call.args[0], int(call.arg(2, -1))
    if row >= 0:
        stays = np.arange(shape_of(table)[0])[:, None] == row
        fixed = ctx.emit(op.grad.no_grad(table))
        table = ctx.emit(op.where(relax.const(stays, "bool"), fixed, table))
    return at(ctx, table, 0, call.args[1])


def _flip(ctx: Context, call: Call) -> Any:
    x, shape = call.args[0], call.shape
    for given in call.args[1]:
        axis = int(given) % len(shape)
        if isinstance(shape[axis], int):
            x = at_places(ctx, x, axis, range(shape[axis])[::-1])
        else:
            x = ctx.emit(op.flip(x, axis))
    return x


def _grid_sample(ctx: Context, call: Call) -> Any:
    """(images, grid, mode, padding, whether corners are the corner pixels' centres)."""
    mode, border = int(call.args[2]), int(call.args[3])
    return grid_sample(
        ctx, call.args[0], call.args[1], mode=("bilinear", "nearest", "bicubic")[mode],
        border=BORDERS[border], corners=bool(call.args[4]),
    )  # fmt: skip


INDEXING: dict[str, Builder] = {
    "embedding.default": _embedding,
    "flip.default": _flip,
    "gather.default": _gather,
    "grid_sampler.default": _grid_sample,
    "index.Tensor": _index,
    "index_select.default": _index_select,
}
"""ATen overload -> builder."""
