"""Builders of what moves, joins, cuts or repeats elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from .. import data_movement
from ..context import Context, shape_of
from ..data_movement import broadcast, cut, repeated, slice_bound
from ..layers import bordered
from ..resampling import at_places
from ..sizes import (
    broadcast_shape,
    completed,
    factor_and_power,
    is_open,
    is_size,
    same,
    simplified,
    sizes_of,
    spec_of,
)
from .node import Node


def axis_of(axis: Any, rank: int) -> int:
    """From 0 on.  Raises ValueError for one that is not there."""
    if not -rank <= int(axis) < rank:
        raise ValueError(f"axis {axis} of a tensor with {rank} axes")
    return int(axis) % rank


def _reshape(ctx: Context, node: Node, target: Sequence[int]) -> Any:
    x = ctx.tensor(node.operand(0))
    return ctx.emit(relax.op.reshape(x, tuple(target)))


def identity(ctx: Context, node: Node) -> Any:
    """Identity."""
    return ctx.tensor(node.operand(0))


def reshape(ctx: Context, node: Node) -> Any:
    """Reshape, with the file's baked sizes rewritten to the new batch and image size.

    Of a target that is a constant, the first size is the batch if it was the operand's, and sizes
    that equal the operand's, counted from the right, follow the operand.
    """
    x = node.operand(0)
    expr = ctx.tensor(x)
    shape = shape_of(expr)
    value = node.operand(1)
    target = sizes_of(node.static(1, "the target shape"))
    before = ctx.original.get(x.name)
    if not node.attr("allowzero", 0):
        if any(same(t, 0) for t in target[len(shape) :]):
            raise ValueError(f"target {target} copies an axis that {list(shape)} lacks")
        target = [shape[i] if same(t, 0) else t for i, t in enumerate(target)]
    baked = list(target)
    if x.batched and not value.measured and before and target:
        if target[0] == before[0]:
            target[0] = shape[0]
        for back in range(1, min(len(target), len(before))):
            if target[-back] != before[-back]:
                break
            target[-back] = shape[-back]
    whole = completed(target, shape)
    if whole is None:
        made = f", made for {list(before)}," if before is not None else ""
        reason = f": it fixes the image size{ctx.options.size}" if ctx.options.resized else ""
        raise ValueError(f"its target {baked}{made} does not take {list(shape)}{reason}")
    return _reshape(ctx, node, whole)


def flatten(ctx: Context, node: Node) -> Any:
    """Flatten to a matrix at `axis`."""
    shape = shape_of(ctx.tensor(node.operand(0)))
    axis = int(node.attr("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return _reshape(ctx, node, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def squeeze(ctx: Context, node: Node) -> Any:
    """Squeeze, as a reshape: relax.squeeze has no gradient."""
    shape = shape_of(ctx.tensor(node.operand(0)))
    axes = node.numbers("axes", 1)
    if axes is None:
        axes = [i for i, d in enumerate(shape) if d == 1]
    drop = {axis_of(a, len(shape)) for a in axes}
    if any(shape[a] != 1 for a in drop):
        raise ValueError(f"axes {sorted(drop)} of {list(shape)} are not all of size 1")
    return _reshape(ctx, node, [d for i, d in enumerate(shape) if i not in drop])


def unsqueeze(ctx: Context, node: Node) -> Any:
    """Unsqueeze, as a reshape."""
    shape = list(shape_of(ctx.tensor(node.operand(0))))
    axes = [int(a) for a in node.numbers("axes", 1, [])]
    rank = len(shape) + len(axes)
    places = [axis_of(a, rank) for a in axes]
    if len(set(places)) != len(places):
        raise ValueError(f"axes {axes} name one twice")
    for axis in sorted(places):
        shape.insert(axis, 1)
    return _reshape(ctx, node, shape)


def transpose(ctx: Context, node: Node) -> Any:
    """Transpose; without `perm` the axes are reversed."""
    perm = node.attr("perm")
    axes = None if perm is None else [int(p) for p in perm]
    return ctx.emit(relax.op.permute_dims(ctx.tensor(node.operand(0)), axes))


def concat(ctx: Context, node: Node) -> Any:
    """Concat along `axis`."""
    given = [ctx.tensor(node.operand(i)) for i in range(len(node.operands))]
    parts = [x for x in given if not any(same(n, 0) for n in shape_of(x))] or given[:1]
    return ctx.emit(relax.op.concat(parts, int(node.attr("axis")))) if len(parts) > 1 else parts[0]


def split(ctx: Context, node: Node) -> list[Any]:
    """Split along `axis` into the given sizes, or into equal parts."""
    x = ctx.tensor(node.operand(0))
    axis = axis_of(node.attr("axis", 0), len(shape_of(x)))
    total, count = shape_of(x)[axis], len(node.proto.output)
    sizes = node.numbers("split", 1)
    if sizes is None or _is_of_another_batch(ctx, node, axis, sizes):
        sizes = _equal_parts(total, count)
    if not same(sum(sizes), total) or any(isinstance(n, int) and n < 1 for n in sizes):
        raise ValueError(f"sizes {sizes} do not split an axis of {spec_of([total])[0]}")
    return data_movement.split(ctx, x, axis, sizes)


def _equal_parts(total: Any, count: int) -> list[Any]:
    """The sizes of so many parts of an axis, of which the last may be smaller."""
    if isinstance(total, int):
        chunk = math.ceil(total / count)
        return [min(chunk, total - i * chunk) for i in range(count)]
    if factor_and_power(total)[0] % count:
        whole = spec_of([total])[0]
        raise ValueError(f"an axis of {whole} has no {count} equal parts for every batch")
    return [simplified(total // count)] * count


def _is_of_another_batch(ctx: Context, node: Node, axis: int, sizes: Sequence[Any]) -> bool:
    """Whether sizes are equal parts of the batch that the file was made for, of the first axis."""
    x = node.operand(0)
    before = ctx.original.get(x.name, ())
    rebatched = (
        x.batched and axis == 0 and before and not same(before[0], shape_of(ctx.tensor(x))[0])
    )
    return bool(rebatched and len({*map(str, sizes)}) == 1 and same(sum(sizes), before[0]))


def split_to_sequence(ctx: Context, node: Node) -> Any:
    """SplitToSequence: parts of constant sizes, from which SequenceAt chooses."""
    x = ctx.tensor(node.operand(0))
    axis = axis_of(node.attr("axis", 0), len(shape_of(x)))
    total, given = shape_of(x)[axis], node.setting("split", 1)
    if given is None and not node.attr("keepdims", 1):
        raise ValueError("keepdims=0 is not supported")
    size = 1 if given is None else given
    sizes = size if isinstance(size, list) else [size] * (total // size) + [total % size]
    sizes = [int(s) for s in sizes if s]
    if sum(sizes) != total or min(sizes) < 1:
        raise ValueError(f"sizes {given} do not split an axis of {total}")
    if len(sizes) == 1:
        return ctx.emit(relax.Tuple([x]))
    return ctx.emit(relax.op.split(x, [int(c) for c in np.cumsum(sizes)[:-1]], axis))


def sequence_at(ctx: Context, node: Node) -> Any:
    """SequenceAt: one of a sequence's tensors, by a constant number."""
    parts = ctx.tensor(node.operand(0))
    index = int(np.asarray(node.static(1, "the position")).item())
    place = axis_of(index, len(parts.ty.fields))
    return ctx.emit(relax.TupleGetItem(parts, place))


_BORDERS = ("constant", "reflect", "edge", "wrap")


def pad(ctx: Context, node: Node) -> Any:
    """Pad with a constant or with what is inside, and crop where a width is negative.

    A constant's borders are concatenations: relax.nn.pad has no gradient of every order.
    """
    x = ctx.tensor(node.operand(0))
    rank = len(shape_of(x))
    mode = node.attr("mode", "constant")
    if mode not in _BORDERS:
        raise ValueError(f"mode {mode!r}: only {', '.join(_BORDERS)} are supported")
    pads = [int(p) for p in node.numbers("pads", 1)]
    fill = node.setting("value", 2, 0.0)
    fill = fill[0] if isinstance(fill, list) else fill
    axes = [axis_of(a, rank) for a in node.numbers("axes", 3, list(range(rank)))]
    if len(pads) != 2 * len(axes):
        raise ValueError(f"pads {pads}: expected two for each of the axes {axes}")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[i + len(axes)])
    return bordered(ctx, x, widths, mode, fill)


def center_crop_pad(ctx: Context, node: Node) -> Any:
    """CenterCropPad to a constant shape: zeros around, or the middle; the odd one is behind."""
    x = ctx.tensor(node.operand(0))
    shape = shape_of(x)
    axes = [axis_of(a, len(shape)) for a in node.attr("axes", list(range(len(shape))))]
    target = sizes_of(node.static(1, "the target shape"))
    if len(target) != len(axes):
        raise ValueError(f"shape {list(target)}: expected a size for each of the axes {axes}")
    widths = [(0, 0)] * len(shape)
    for axis, size in zip(axes, target, strict=True):
        if not (isinstance(shape[axis], int) and isinstance(size, int)):
            raise ValueError(f"axis {axis} of {shape[axis]} to {size}: expected constant sizes")
        more = size - shape[axis]
        before = abs(more) // 2
        widths[axis] = (before, more - before) if more > 0 else (-before, more + before)
    return bordered(ctx, x, widths)


def is_end(end: Any) -> bool:
    """Whether a slice's end is that of any axis."""
    return not is_size(end) and int(end) >= 2**31 - 1


def slice_(ctx: Context, node: Node) -> Any:
    """Slice between constant bounds, also backwards."""
    x = ctx.tensor(node.operand(0))
    rank = len(shape_of(x))
    starts, ends = node.numbers("starts", 1), node.numbers("ends", 2)
    if starts is None or ends is None or len(starts) != len(ends):
        raise ValueError(f"starts={starts}, ends={ends}: expected as many of both")
    axes = node.numbers("axes", 3, list(range(len(starts))))
    steps = node.numbers("steps", 4, [1] * len(starts))
    if not len(axes) == len(steps) == len(starts):
        raise ValueError(f"axes={axes}, steps={steps}: expected {len(starts)} of each")
    for start, end, given, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis_of(given, rank)
        size = shape_of(x)[axis]
        if not isinstance(size, int):
            start, end = slice_bound(start, size), slice_bound(None if is_end(end) else end, size)
            x = cut(ctx, x, axis, start, end, int(step))
            continue
        first, stop, step = slice(int(start), int(end), int(step)).indices(size)
        indices = range(first, stop, step)
        if not indices:
            if node.proto.output[0] not in ctx.joined or is_open(shape_of(x)):
                raise ValueError(f"the slice {start}:{end}:{step} of {size} elements is empty")
            none = [0 if a == axis else n for a, n in enumerate(shape_of(x))]
            return relax.const(np.empty(none, str(x.ty.dtype)), str(x.ty.dtype))
        if step > 0:
            x = cut(ctx, x, axis, first, indices[-1] + 1, step)
        else:
            x = at_places(ctx, x, axis, indices)
    return x


def expand(ctx: Context, node: Node) -> Any:
    """Expand to a constant shape, both broadcast."""
    x = ctx.tensor(node.operand(0))
    target = sizes_of(node.static(1, "the target shape"))
    return broadcast(ctx, x, broadcast_shape(shape_of(x), target))


def tile(ctx: Context, node: Node) -> Any:
    """Tile by constant numbers."""
    x = ctx.tensor(node.operand(0))
    times = [int(t) for t in node.static(1, "repeats").ravel()]
    if len(times) != len(shape_of(x)) or min(times, default=1) < 1:
        raise ValueError(f"repeats {times} of {list(shape_of(x))}: expected a number for each axis")
    return repeated(ctx, x, times)


def _blocks(node: Node, shape: Sequence[int]) -> int:
    size = int(node.attr("blocksize", 0))
    if len(shape) != 4 or size < 1:
        raise ValueError(f"blocksize={size} of {list(shape)}: expected (N, C, H, W)")
    return size


def depth_to_space(ctx: Context, node: Node) -> Any:
    """DepthToSpace: channels become blocks of pixels; mode CRD is PyTorch's pixel_shuffle."""
    x = ctx.tensor(node.operand(0))
    block, channels = _blocks(node, shape_of(x)), shape_of(x)[1]
    if channels % (block * block):
        raise ValueError(f"{channels} channels are no multiple of {block * block}")
    first = node.attr("mode", "DCR") == "CRD"
    return data_movement.depth_to_space(ctx, x, block, channels_first=first)


def space_to_depth(ctx: Context, node: Node) -> Any:
    """SpaceToDepth: blocks of pixels become channels, the block's place first."""
    x = ctx.tensor(node.operand(0))
    block, (h, w) = _blocks(node, shape_of(x)), shape_of(x)[2:]
    if h % block or w % block:
        raise ValueError(f"{h}x{w} pixels are no multiple of {block}")
    return data_movement.space_to_depth(ctx, x, block, channels_first=False)


SHAPES: dict[str, Callable[[Context, Node], Any]] = {
    "CenterCropPad": center_crop_pad,
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Flatten": flatten,
    "Identity": identity,
    "Pad": pad,
    "Reshape": reshape,
    "SequenceAt": sequence_at,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "SplitToSequence": split_to_sequence,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
"""ONNX op -> builder.  A split returns a list of results, every other builder one."""

# Their result is a plain reshaping of their first operand: a weight stays a weight.
RESHAPING = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
