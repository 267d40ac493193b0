"""Operations that move elements: shapes, borders, parts, joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...dtypes import numpy_dtype
from ..context import Context, shape_of
from .operation import Builder, Step, cast, emitted_as_is
from .reader import constant
from .tensors import Padded, Tensor, of_array, of_expr, reshape, reshaped, reverse, transpose

op = relax.op
_KNOWN = 1 << 16  # elements of a table of numbers that are kept as such


def _constant(ctx: Context, step: Step) -> Tensor:
    array = constant(step.attribute("value"), step.shape, step.dtype)
    return of_array(array, step.dtype, step.shape)


def _iota(ctx: Context, step: Step) -> Tensor:
    axis = int(step.attribute("iota_dimension"))
    column = [-1 if a == axis else 1 for a in range(len(step.shape))]
    numbers = np.arange(step.shape[axis]).astype(numpy_dtype(step.dtype)).reshape(column)
    return of_array(numbers, step.dtype, step.shape)


def _broadcast(ctx: Context, step: Step) -> Tensor:
    """(x), whose axis i is the result's axis `broadcast_dimensions[i]`."""
    (x,), dims = step.operands, step.integers("broadcast_dimensions")
    if dims != sorted(dims):
        order = sorted(range(len(dims)), key=lambda i: dims[i])
        x, dims = transpose(ctx, x, order), sorted(dims)
    narrow = [1] * len(step.shape)
    for axis, size in zip(dims, x.narrow, strict=True):
        narrow[axis] = size
    if tuple(narrow) == step.shape and x.narrow == x.shape:
        return reshape(ctx, x, step.shape)
    if x.narrow == x.shape and not x.known:
        made = reshape(ctx, x, tuple(narrow)).full(ctx)
    else:
        made = x.part.reshape(narrow) if x.known else reshaped(ctx, x.part, narrow)
    return Tensor(step.shape, x.dtype, made, argument=x.argument)


def _reshape(ctx: Context, step: Step) -> Tensor:
    return reshape(ctx, step.operands[0], step.shape)


def _transpose(ctx: Context, step: Step) -> Tensor:
    return transpose(ctx, step.operands[0], step.integers("permutation"))


def _reverse(ctx: Context, step: Step) -> Tensor:
    return reverse(ctx, step.operands[0], step.integers("dimensions"))


# ---- borders and parts ---------------------------------------------------------------------------


def _pad(ctx: Context, step: Step) -> Tensor:
    """(x, value); widths may be negative, which takes away."""
    x, filling = step.operands
    low, high = step.integers("edge_padding_low"), step.integers("edge_padding_high")
    return pad(ctx, x, filling, low, high, step.integers("interior_padding"))


def pad(
    ctx: Context, x: Tensor, filling: Tensor, low: Sequence[int], high: Sequence[int],
    interior: Sequence[int],
) -> Tensor:  # fmt: skip
    """A border, and `interior` values between the elements.

    Raises ValueError for a value that is not known.
    """
    if not (any(low) or any(high) or any(interior)):
        return x
    value = filling.number()
    if value is None:
        raise ValueError("a border of a value that is computed is not supported")
    made = _apart(ctx, _with(ctx, x.full(ctx)), interior, value)
    widths = [w for pair in zip(low, high, strict=True) for w in pair]
    if any(w > 0 for w in widths):
        made = ctx.emit(op.nn.pad(made, [max(w, 0) for w in widths], pad_value=float(value)))
    bounds = [
        (max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, shape_of(made), strict=True)
    ]
    made = sliced(ctx, made, bounds)
    found = of_expr(cast(ctx, made, x.dtype))
    found.padded = Padded(x, tuple(low), tuple(high), tuple(interior), float(value))
    return found


def _with(ctx: Context, x: Any) -> Any:
    """Truths as numbers: there is no border of truths."""
    return cast(ctx, x, "int8") if str(x.ty.dtype) == "bool" else x


def _apart(ctx: Context, x: Any, interior: Sequence[int], value: Any) -> Any:
    for axis, more in enumerate(interior):
        shape = shape_of(x)
        if not more or shape[axis] < 2:
            continue
        between = ctx.emit(op.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :])))
        widths = [0] * (2 * len(shape) + 2)
        widths[2 * axis + 3] = more
        wide = ctx.emit(op.nn.pad(between, widths, pad_value=float(value)))
        size = shape[axis] * (more + 1)
        flat = ctx.emit(op.reshape(wide, (*shape[:axis], size, *shape[axis + 1 :])))
        x = sliced(ctx, flat, [(0, size - more if a == axis else n) for a, n in enumerate(shape)])
    return x


def sliced(ctx: Context, x: Any, bounds: Sequence[tuple[int, int]], strides: Any = None) -> Any:
    """x[begin:end:stride] along each axis; x itself where that is all of it."""
    shape = shape_of(x)
    strides = [1] * len(shape) if strides is None else strides
    axes = [
        a for a, (begin, end) in enumerate(bounds) if (begin, end, strides[a]) != (0, shape[a], 1)
    ]
    if not axes:
        return x
    begin, end = [bounds[a][0] for a in axes], [bounds[a][1] for a in axes]
    return ctx.emit(op.strided_slice(x, axes, begin, end, [strides[a] for a in axes]))


def _slice(ctx: Context, step: Step) -> Tensor:
    (x,) = step.operands
    begin, end = step.integers("start_indices"), step.integers("limit_indices")
    return slice_of(ctx, x, begin, end, step.integers("strides", [1] * x.rank))


def slice_of(
    ctx: Context, x: Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]
) -> Tensor:
    """x[begin:end:stride]; what a border had been put around, where it is that."""
    around = x.padded
    if (
        around is not None and list(begin) == list(around.low) and set(strides) == {1}
        and not any(around.interior) and min(*around.low, *around.high, 0) >= 0
        and [b - a for a, b in zip(begin, end, strict=True)] == list(around.source.shape)
    ):  # fmt: skip
        return around.source
    triples = list(zip(begin, end, strides, strict=True))
    shape = tuple(len(range(*triple)) for triple in triples)
    if shape == x.shape:
        return x
    if x.known:
        kept = tuple(
            slice(*t) if n > 1 else slice(None) for t, n in zip(triples, x.narrow, strict=True)
        )
        return of_array(x.part[kept], x.dtype, shape)
    bounds = [(b, e) if n > 1 else (0, 1) for (b, e, _), n in zip(triples, x.narrow, strict=True)]
    steps = [s if n > 1 else 1 for s, n in zip(strides, x.narrow, strict=True)]
    return Tensor(shape, x.dtype, sliced(ctx, x.part, bounds, steps), argument=x.argument)


def _concatenate(ctx: Context, step: Step) -> Tensor:
    axis = int(step.attribute("dimension"))
    xs = [x for x in step.operands if x.shape[axis]]
    if all(x.known for x in xs) and int(np.prod(step.shape)) <= _KNOWN:
        return of_array(np.concatenate([x.array() for x in xs], axis), step.dtype)
    if len(xs) == 1:
        return xs[0]
    return emitted_as_is(ctx, op.concat([x.full(ctx) for x in xs], axis))


def _same(ctx: Context, step: Step) -> list[Tensor]:
    return step.operands


MOVING: dict[str, Builder] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "constant": _constant,
    "iota": _iota,
    "optimization_barrier": _same,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "transpose": _transpose,
}
"""Operation -> builder."""
