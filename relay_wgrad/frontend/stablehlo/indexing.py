"""Parts at computed places: gather, scatter, slices that begin where the program says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from tvm import relax

from ..context import Context, shape_of
from ..indexing import at
from .data_movement import slice_of
from .elementwise import COMPARISONS, OPERATIONS, apply
from .operation import Builder, Step
from .reader import body
from .tensors import Tensor, of_array, of_expr, reshape, transpose

op = relax.op
_INDEX = "int64"


def _numbers(step: Step, kind: str, name: str) -> Any:
    return getattr(import_module("jaxlib.mlir.dialects.stablehlo"), kind)(step.attribute(name))


def _integers(ctx: Context, x: Tensor) -> Tensor:
    if x.known:
        return Tensor(x.shape, _INDEX, x.part.astype(_INDEX))
    return Tensor(x.shape, _INDEX, ctx.emit(op.astype(x.part, _INDEX)))


def _number(value: int, rank: int) -> Tensor:
    return of_array(np.full((1,) * rank, value, _INDEX), _INDEX)


def _binary(ctx: Context, name: str, a: Tensor, b: Tensor) -> Tensor:
    shape = np.broadcast_shapes(a.shape, b.shape)
    return apply(ctx, OPERATIONS[name], [a, b], shape, a.dtype)


def _clipped(ctx: Context, x: Tensor, most: int) -> Tensor:
    """From 0 to `most`."""
    raised = _binary(ctx, "maximum", x, _number(0, x.rank))
    return _binary(ctx, "minimum", raised, _number(most, x.rank))


def _in_bounds(ctx: Context, inside: Tensor, places: Tensor, size: int) -> Tensor:
    """Truths, and that places are those of an axis of this size."""
    for name, bound in (("GE", 0), ("LT", size)):
        operands = [places, _number(bound, places.rank)]
        fits = apply(ctx, COMPARISONS[name], operands, places.shape, "bool")
        inside = _binary(ctx, "and", inside, fits)
    return inside


def _column(indices: Tensor, axis: int, which: int, ctx: Context) -> Tensor:
    """One number of each index vector, without the vectors' axis."""
    indices = _integers(ctx, indices)
    if axis == indices.rank:
        return indices
    begin = [which if a == axis else 0 for a in range(indices.rank)]
    end = [which + 1 if a == axis else n for a, n in enumerate(indices.shape)]
    one = slice_of(ctx, indices, begin, end, [1] * indices.rank)
    return reshape(ctx, one, tuple(n for a, n in enumerate(one.shape) if a != axis))


def _along(size: int, axis: int, rank: int) -> Tensor:
    """0, 1, … along one axis."""
    column = [size if a == axis else 1 for a in range(rank)]
    return of_array(np.arange(size, dtype=_INDEX).reshape(column), _INDEX)


def _take(ctx: Context, x: Tensor, axis: int, index: Tensor) -> Any:
    """Elements along an axis by indices that are all within."""
    places = index.array() if index.known else None
    return at(ctx, x.full(ctx), axis, relax.const(places, _INDEX) if places is not None
              else index.full(ctx))  # fmt: skip


def _gather(ctx: Context, step: Step) -> Tensor:
    """(x, index vectors): from each vector's place on a part of `slice_sizes`; those that would
    reach beyond begin earlier."""
    x, indices = step.operands
    dims = _numbers(step, "GatherDimensionNumbers", "dimension_numbers")
    offset, collapsed = list(dims.offset_dims), list(dims.collapsed_slice_dims)
    batching, vectors = list(dims.operand_batching_dims), int(dims.index_vector_dim)
    mapped, sizes = list(dims.start_index_map), step.integers("slice_sizes")
    rank = len(step.shape)
    images = [a for a in range(rank) if a not in offset]
    kept = [d for d in range(x.rank) if d not in collapsed and d not in batching]
    starts = [
        _clipped(ctx, _column(indices, vectors, j, ctx), x.shape[d] - sizes[d])
        for j, d in enumerate(mapped)
    ]
    rest = [d for d in range(x.rank) if d not in mapped]
    if not batching and len(mapped) == 1 and sizes[mapped[0]] == 1 and all(
        sizes[d] == x.shape[d] for d in rest
    ):  # fmt: skip
        made = of_expr(_take(ctx, x, mapped[0], starts[0]))
        before = [d for d in kept if d < mapped[0]]
        after = [d for d in kept if d > mapped[0]]
        order = [*(offset[kept.index(d)] for d in before), *images,
                 *(offset[kept.index(d)] for d in after)]  # fmt: skip
        free = [a for a in range(rank) if a not in order]  # the indexed axis, of one element
        turned = transpose(ctx, made, [order.index(a) for a in range(rank) if a not in free])
        return reshape(ctx, turned, step.shape)
    along = {d: (sizes[d], axis) for d, axis in zip(kept, offset, strict=True)}
    for d, axis in zip(batching, dims.start_indices_batching_dims, strict=True):
        along[d] = x.shape[d], images[axis - (axis > vectors)]
    line, _ = _line(ctx, x, along, dict(zip(mapped, starts, strict=True)), images, rank)
    flat = reshape(ctx, x, (math.prod(x.shape),))
    return of_expr(_take(ctx, flat, 0, line))


def _line(
    ctx: Context, x: Tensor, along: dict[int, tuple[int, int]], starts: dict[int, Tensor],
    images: Sequence[int], rank: int,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """(places in x's elements one after another, places along each axis of x): by axis, from a
    start on, whose axes are these, and so many elements along an axis."""
    line, places = _number(0, rank), []
    for d in range(x.rank):
        place = _along(*along[d], rank) if d in along else _number(0, rank)
        if d in starts:
            place = _binary(ctx, "add", place, _at_axes(ctx, starts[d], images, rank))
        stride = _number(math.prod(x.shape[d + 1 :]), rank)
        line = _binary(ctx, "add", line, _binary(ctx, "multiply", place, stride))
        places.append(place)
    return line, places


def _at_axes(ctx: Context, x: Tensor, axes: Sequence[int], rank: int) -> Tensor:
    """x's axes as these of `rank`, the others of size 1."""
    shape = [1] * rank
    for axis, size in zip(axes, x.shape, strict=True):
        shape[axis] = size
    return reshape(ctx, x, tuple(shape))


def _scatter(ctx: Context, step: Step) -> Tensor:
    """(x, index vectors, parts): each part put or added at its vector's place, but for what would
    lie beyond."""
    if len(step.operands) != 3:
        raise ValueError("of several tensors at once is not supported")
    x, indices, parts = step.operands
    kind = body(step.operation)
    if kind != "add" and not _puts(step.operation):
        raise ValueError(f"by {kind or 'a function'}: only sums and the part itself are supported")
    dims = _numbers(step, "ScatterDimensionNumbers", "scatter_dimension_numbers")
    window, inserted = list(dims.update_window_dims), list(dims.inserted_window_dims)
    batching, vectors = list(dims.input_batching_dims), int(dims.index_vector_dim)
    mapped = list(dims.scattered_dims_to_operand_dims)
    rank = parts.rank
    images = [a for a in range(rank) if a not in window]
    kept = [d for d in range(x.rank) if d not in inserted and d not in batching]
    along = {d: (parts.shape[axis], axis) for d, axis in zip(kept, window, strict=True)}
    for d, axis in zip(batching, dims.scatter_indices_batching_dims, strict=True):
        along[d] = x.shape[d], images[axis - (axis > vectors)]
    starts = {d: _column(indices, vectors, j, ctx) for j, d in enumerate(mapped)}
    line, places = _line(ctx, x, along, starts, images, rank)
    inside = of_array(np.ones((1,) * rank, bool), "bool")
    for d in mapped:
        inside = _in_bounds(ctx, inside, places[d], x.shape[d])
    size, count = math.prod(x.shape), math.prod(parts.shape)
    beyond = ctx.emit(op.where(inside.full(ctx), line.full(ctx), relax.const(size, _INDEX)))
    index = ctx.emit(op.broadcast_to(beyond, parts.shape))
    flat = ctx.emit(op.reshape(index, (count,)))
    values = reshape(ctx, parts, (count,)).full(ctx)
    # What lies beyond goes to an element more, which is cut off.
    longer = ctx.emit(op.nn.pad(reshape(ctx, x, (size,)).full(ctx), [0, 1]))
    how = "add" if kind == "add" else "update"
    made = of_expr(ctx.emit(op.scatter_elements(longer, flat, values, 0, how)))
    return reshape(ctx, slice_of(ctx, made, [0], [size], [1]), x.shape)


def _puts(operation: Any) -> bool:
    """Whether the region gives its second argument."""
    block = operation.regions[0].blocks[0]
    (end, *more) = list(block.operations)
    return not more and list(end.operation.operands) == [list(block.arguments)[1]]


def _dynamic_slice(ctx: Context, step: Step) -> Tensor:
    """(x, where it begins along each axis…); one that would reach beyond begins earlier."""
    x, starts = step.operands[0], step.operands[1:]
    sizes = step.integers("slice_sizes")
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size == x.shape[axis]:
            continue
        first = reshape(ctx, _clipped(ctx, _integers(ctx, start), x.shape[axis] - size), (1,))
        if first.known:
            begin = [int(first.part[0]) if a == axis else 0 for a in range(x.rank)]
            end = [b + (size if a == axis else x.shape[a]) for a, b in enumerate(begin)]
            x = slice_of(ctx, x, begin, end, [1] * x.rank)
            continue
        places = _binary(ctx, "add", first, _along(size, 0, 1))
        x = of_expr(_take(ctx, x, axis, places))
    return x


def _dynamic_update_slice(ctx: Context, step: Step) -> Tensor:
    """(x, part, where it begins along each axis…): x with the part in its place."""
    x, given, starts = step.operands[0], step.operands[1], step.operands[2:]
    places, inside = [], of_array(np.ones((1,) * x.rank, bool), "bool")
    for axis, start in enumerate(starts):
        room = x.shape[axis] - given.shape[axis]
        first = _clipped(ctx, _integers(ctx, start), room)
        first = reshape(ctx, first, (1,) * x.rank)
        place = _binary(ctx, "subtract", _along(x.shape[axis], axis, x.rank), first)
        inside = _in_bounds(ctx, inside, place, given.shape[axis])
        flat = reshape(ctx, place, (x.shape[axis],))
        places.append(_clipped(ctx, flat, given.shape[axis] - 1))
    made = given
    for axis, place in enumerate(places):
        if given.shape[axis] != x.shape[axis]:
            made = of_expr(_take(ctx, made, axis, place))
    assert shape_of(made.full(ctx)) == x.shape
    return of_expr(ctx.emit(op.where(inside.full(ctx), made.full(ctx), x.full(ctx))))


INDEXING: dict[str, Builder] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
"""Operation -> builder."""
