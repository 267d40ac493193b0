"""ATen ops that move, join, cut, repeat or make tensors, as ops that have a gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ir import constant
from ..context import Context, shape_of
from ..data_movement import (
    broadcast,
    cut,
    depth_to_space,
    repeated,
    rolled,
    slice_bound,
    space_to_depth,
    split,
)
from ..sizes import is_open, is_size
from .call import Builder, Call, Unset, as_dtype
from .names import op_of

op = relax.op


def _shaped(ctx: Context, call: Call) -> Any:
    """Another shape of the same values, which PyTorch has worked out."""
    call.args[1:]
    return ctx.emit(op.reshape(call.args[0], call.shape))


def _permuted(ctx: Context, x: Any, axes: list[int]) -> Any:
    return ctx.emit(op.permute_dims(x, axes)) if axes != sorted(axes) else x


def _permute(ctx: Context, call: Call) -> Any:
    rank = len(shape_of(call.args[0]))
    return _permuted(ctx, call.args[0], [int(a) % rank for a in call.args[1]])


def _transpose(ctx: Context, call: Call) -> Any:
    rank = len(shape_of(call.args[0]))
    axes = list(range(rank))
    if rank:
        a, b = (call.args[i] % rank for i in (1, 2))
        axes[a], axes[b] = axes[b], axes[a]
    return _permuted(ctx, call.args[0], axes)


def _matrix_transpose(ctx: Context, call: Call) -> Any:
    return _permuted(ctx, call.args[0], list(range(len(shape_of(call.args[0]))))[::-1])


def _expand(ctx: Context, call: Call) -> Any:
    call.args[1]
    return broadcast(ctx, call.args[0], call.shape)


def _broadcast(ctx: Context, call: Call) -> list[Any]:
    return [
        broadcast(ctx, x, call.sizes(v.shape))
        for x, v in zip(call.args[0], call.result, strict=True)
    ]


def _repeat(ctx: Context, call: Call) -> Any:
    return repeated(ctx, call.args[0], [int(t) for t in call.args[1]])


def _tile(ctx: Context, call: Call) -> Any:
    """As `repeat`, of leading axes once where numbers are left out."""
    times = [int(t) for t in call.args[1]]
    rank = len(shape_of(call.args[0]))
    return repeated(ctx, call.args[0], [1] * (rank - len(times)) + times)


def _repeat_each(ctx: Context, call: Call) -> Any:
    """(x, times, axis): each element that often, one after another; of all elements, flat."""
    x, times = call.args[0], int(call.args[1])
    shape = shape_of(x)
    if call.arg(2) is None:
        shape, axis = (math.prod(shape),), 0
    else:
        axis = int(call.args[2]) % len(shape)
    apart = ctx.emit(op.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :])))
    wide = ctx.emit(op.broadcast_to(apart, (*shape[: axis + 1], times, *shape[axis + 1 :])))
    call.setting("output_size")
    return ctx.emit(op.reshape(wide, call.shape))


def _is_empty(x: Any) -> bool:
    return any(isinstance(size, int) and size == 0 for size in shape_of(x))


def _cat(ctx: Context, call: Call) -> Any:
    parts = [as_dtype(ctx, x, call.dtype) for x in call.args[0] if not _is_empty(x)]
    axis = int(call.arg(1, 0)) % len(call.shape)
    if any(len(shape_of(x)) != len(call.shape) for x in parts):
        raise ValueError("an empty tensor of another rank is not supported")
    return ctx.emit(op.concat(parts, axis)) if len(parts) > 1 else parts[0]


def _stack(ctx: Context, call: Call) -> Any:
    axis = int(call.arg(1, 0)) % len(call.shape)
    shape = [1 if i == axis else s for i, s in enumerate(call.shape)]
    parts = [ctx.emit(op.reshape(as_dtype(ctx, x, call.dtype), shape)) for x in call.args[0]]
    return ctx.emit(op.concat(parts, axis)) if len(parts) > 1 else parts[0]


def _split(ctx: Context, call: Call) -> list[Any]:
    """Into the sizes that PyTorch says."""
    call.args[1]
    axis = int(call.arg(2, 0)) % len(call.shape)
    return split(ctx, call.args[0], axis, [call.sizes(v.shape)[axis] for v in call.result])


def _unbind(ctx: Context, call: Call) -> list[Any]:
    x = call.args[0]
    axis = int(call.arg(1, 0)) % len(shape_of(x))
    parts = [cut(ctx, x, axis, i, i + 1) for i in range(shape_of(x)[axis])]
    return [ctx.emit(op.reshape(part, call.shape)) for part in parts]


def _slice(ctx: Context, call: Call) -> Any:
    x, axis = call.args[0], int(call.arg(1, 0)) % len(call.shape)
    size, step = shape_of(x)[axis], int(call.arg(4, 1))
    if is_open((size, *call.args[2:4])):
        start, stop = call.arg(2), call.arg(3)
        start, stop = 0 if start is None else slice_bound(start, size), slice_bound(stop, size)
        return cut(ctx, x, axis, start, stop, step)
    start, stop, _ = slice(call.arg(2), call.arg(3), step).indices(size)
    if stop <= start:
        users = {*map(op_of, call.node.users)}
        if users != {"cat.default"}:
            raise ValueError(f"an empty slice, {start}:{stop} of {size}, is not supported")
        return constant(np.empty(call.shape), call.dtype)  # joined to others, it is nothing
    return cut(ctx, x, axis, start, stop, step)


def _select(ctx: Context, call: Call) -> Any:
    x = call.args[0]
    axis = int(call.args[1]) % len(shape_of(x))
    index = int(call.args[2]) % shape_of(x)[axis]
    return ctx.emit(op.reshape(cut(ctx, x, axis, index, index + 1), call.shape))


def _assigned(ctx: Context, x: Any, part: Any, axis: int, start: int, stop: int) -> Any:
    """x with another tensor in the place of x[start:stop] along an axis."""
    size = shape_of(x)[axis]
    parts = [cut(ctx, x, axis, 0, start)] if start else []
    parts += [part, *([cut(ctx, x, axis, stop, size)] if stop < size else [])]
    return ctx.emit(op.concat(parts, axis)) if len(parts) > 1 else part


def _slice_scatter(ctx: Context, call: Call) -> Any:
    """(x, part, axis, start, stop, step): `x[start:stop] = part`."""
    x, axis = call.args[0], int(call.arg(2, 0)) % len(call.shape)
    size, step = shape_of(x)[axis], int(call.arg(5, 1))
    start, stop, _ = slice(call.arg(3), call.arg(4), step).indices(size)
    part = as_dtype(ctx, call.args[1], call.dtype)
    if stop <= start:
        return x
    if step == 1:
        return _assigned(ctx, x, part, axis, start, stop)
    for i, at in enumerate(range(start, stop, step)):
        x = _assigned(ctx, x, cut(ctx, part, axis, i, i + 1), axis, at, at + 1)
    return x


def _select_scatter(ctx: Context, call: Call) -> Any:
    """(x, part, axis, index): `x[index] = part`."""
    x, axis = call.args[0], int(call.args[2]) % len(call.shape)
    index = int(call.args[3]) % call.shape[axis]
    shape = [1 if i == axis else s for i, s in enumerate(call.shape)]
    part = ctx.emit(op.reshape(as_dtype(ctx, call.args[1], call.dtype), shape))
    return _assigned(ctx, x, part, axis, index, index + 1)


def _copied(ctx: Context, call: Call) -> Any:
    """(x, other): the other in x's shape and dtype; what x was has no gradient."""
    call.args[0]
    return broadcast(ctx, as_dtype(ctx, call.args[1], call.dtype), call.shape)


def _roll(ctx: Context, call: Call) -> Any:
    x = call.args[0]
    shifts, axes = ([v] if isinstance(v, int) else list(v) for v in (call.args[1], call.arg(2, [])))
    flat = not axes
    if flat:
        x, axes = ctx.emit(op.reshape(x, (math.prod(call.shape),))), [0]
    for shift, axis in zip(shifts, axes, strict=True):
        x = rolled(ctx, x, axis % len(shape_of(x)), shift)
    return ctx.emit(op.reshape(x, call.shape)) if flat else x


def _pixels(build: Any) -> Builder:
    """(x, factor), blocks of pixels within each channel."""
    return lambda ctx, call: build(ctx, call.args[0], int(call.args[1]), channels_first=True)


# ---- what is made of nothing ---------------------------------------------------------------------


def filled(value: float | None, place: int = 0, *, stored: bool = True) -> Builder:
    """A tensor of one value, which is an argument where None is given.

    stored : as a constant of the program; else it is made when it is needed.
    """

    def build(ctx: Context, call: Call) -> Any:
        filling = call.args[place] if value is None else value
        call.args[:]  # the shape, which PyTorch says
        if hasattr(filling, "ty"):
            filling = as_dtype(ctx, filling, call.dtype)
            return ctx.emit(op.broadcast_to(filling, call.shape))
        if stored:
            return ctx.full(call.shape, filling, call.dtype)
        return ctx.emit(op.full(call.shape, constant(filling, call.dtype), call.dtype))

    return build


def _arange(ctx: Context, call: Call) -> Any:
    numbers = call.args[:]
    if any(hasattr(n, "ty") and not is_size(n) for n in numbers):
        raise ValueError("its bounds must be numbers")
    if any(map(is_size, numbers)):  # as many as the batch has images
        return ctx.emit(op.arange(*numbers, dtype=call.dtype))
    values = np.arange(*numbers)
    return constant(values.astype(call.dtype), call.dtype)


def _unset(ctx: Context, call: Call) -> Unset:
    call.args[:]
    return Unset(call.shape, call.dtype)


FILLED: dict[str, Builder] = {
    "empty.memory_format": _unset,
    "empty_like.default": _unset,
    "fill.Scalar": filled(None, 1),
    "fill.Tensor": filled(None, 1),
    "full.default": filled(None, 1),
    "full_like.default": filled(None, 1),
    "new_empty.default": _unset,
    "new_full.default": filled(None, 2),
    "new_ones.default": filled(1),
    "new_zeros.default": filled(0),
    "ones.default": filled(1),
    "ones_like.default": filled(1),
    "scalar_tensor.default": filled(None),
    "zero.default": filled(0),
    "zeros.default": filled(0),
    "zeros_like.default": filled(0),
}
"""ATen overload -> builder, of tensors that are made of nothing but a shape and a value."""

SHAPES: dict[str, Builder] = {
    **FILLED,
    "_unsafe_view.default": _shaped,
    "arange.default": _arange,
    "arange.start": _arange,
    "arange.start_step": _arange,
    "broadcast_tensors.default": _broadcast,
    "cat.default": _cat,
    "copy.default": _copied,
    "expand.default": _expand,
    "permute.default": _permute,
    "pixel_shuffle.default": _pixels(depth_to_space),
    "pixel_unshuffle.default": _pixels(space_to_depth),
    "repeat.default": _repeat,
    "repeat_interleave.self_int": _repeat_each,
    "roll.default": _roll,
    "select.int": _select,
    "select_scatter.default": _select_scatter,
    "slice.Tensor": _slice,
    "slice_scatter.default": _slice_scatter,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "squeeze.default": _shaped,
    "squeeze.dim": _shaped,
    "squeeze.dims": _shaped,
    "stack.default": _stack,
    "t.default": _matrix_transpose,
    "tile.default": _tile,
    "transpose.int": _transpose,
    "unbind.int": _unbind,
    "unsqueeze.default": _shaped,
    "view.default": _shaped,
}
"""ATen overload -> builder."""
