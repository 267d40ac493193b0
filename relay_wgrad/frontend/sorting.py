"""Places of elements by their size, and the elements there: sorting and the largest few."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .context import Context, shape_of
from .data_movement import cut
from .indexing import gathered

op = relax.op


def ordered(
    ctx: Context, x: Any, axis: int, count: int | None = None, *, descending: bool = False
) -> tuple[Any, Any]:
    """(the elements of an axis by their size, or the first of them, their places).

    The gradient goes to the places; of equal elements the first comes first.
    """
    shape = shape_of(x)
    axis %= len(shape)
    if count is not None and not 1 <= count <= shape[axis]:
        raise ValueError(f"{count} elements of an axis of {shape[axis]}")
    places = ctx.emit(op.argsort(x, axis, descending, "int64"))
    if count is not None:
        places = cut(ctx, places, axis, 0, count)
    if not all(isinstance(size, int) for size in shape):
        raise ValueError("places by size are not supported")
    return gathered(ctx, x, axis, places), places
