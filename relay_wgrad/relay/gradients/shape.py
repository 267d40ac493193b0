"""Gradients of operators that move, repeat, join, choose and make elements."""

from __future__ import annotations

from math import prod

import numpy as np

from ..ast import Call, Expr, Tuple, TupleGetItem
from ..records import attributes_of, show
from ..records.select import resolved_slices
from ..records.table import Call as Site
from .common import (
    Rule,
    broadcast_to_like,
    call,
    cast_like,
    collapse_sum_like,
    constant,
    fields_of,
    is_half,
    refuse,
    reshape,
    reshape_like,
    scalar,
    sizes,
    total,
    transpose,
    type_of,
    where,
    zeros_for_all,
    zeros_like,
)


def _back_to_shape(orig: Call, grad: Expr) -> list[Expr]:
    """The shape of the first argument; the others only give shapes."""
    return [reshape_like(grad, orig.args[0]), *map(zeros_like, orig.args[1:])]


def _same(orig: Call, grad: Expr) -> list[Expr]:
    return [grad]


def _collapsed(orig: Call, grad: Expr) -> list[Expr]:
    return [collapse_sum_like(grad, orig.args[0]), *map(zeros_like, orig.args[1:])]


def _broadcast(orig: Call, grad: Expr) -> list[Expr]:
    return [broadcast_to_like(grad, orig.args[0]), *map(zeros_like, orig.args[1:])]


def _transpose(orig: Call, grad: Expr) -> list[Expr]:
    axes = attributes_of(orig)["axes"]
    if not axes:
        return [transpose(grad)]
    positive = [axis % len(axes) for axis in axes]
    return [transpose(grad, [positive.index(i) for i in range(len(axes))])]


def _expand_dims(orig: Call, grad: Expr) -> list[Expr]:
    a, ndim = attributes_of(orig), len(type_of(orig).shape)
    axis = a["axis"] if a["axis"] >= 0 else a["axis"] + ndim - a["num_newaxis"] + 1
    for _ in range(a["num_newaxis"]):
        grad = call("squeeze", grad, axis=[axis])
    return [grad]


def _layout_transform(orig: Call, grad: Expr) -> list[Expr]:
    a = attributes_of(orig)
    back = {"src_layout": a["dst_layout"], "dst_layout": a["src_layout"]}
    return [call("layout_transform", grad, **back)]


def _tile(orig: Call, grad: Expr) -> list[Expr]:
    """Each axis as (repetitions, size), summed over the former."""
    shape, reps = sizes(orig, orig.args[0]), list(attributes_of(orig)["reps"])
    ndim = max(len(shape), len(reps))
    shape, reps = [1] * (ndim - len(shape)) + shape, [1] * (ndim - len(reps)) + reps
    wide = [n for pair in zip(reps, shape, strict=True) for n in pair]
    return [reshape_like(total(reshape(grad, wide), range(0, 2 * ndim, 2)), orig.args[0])]


def _repeat(orig: Call, grad: Expr) -> list[Expr]:
    """The axis as (size, repeats), summed over the latter; without an axis, of all in a row."""
    shape, a = sizes(orig, orig.args[0]), attributes_of(orig)
    if a["axis"] is None:
        shape, axis = [prod(shape)], 0
    else:
        axis = a["axis"] % len(shape)
    wide = [*shape[: axis + 1], a["repeats"], *shape[axis + 1 :]]
    return [reshape_like(total(reshape(grad, wide), [axis + 1]), orig.args[0])]


def _concatenate(orig: Call, grad: Expr) -> list[Expr]:
    fields, axis = fields_of(orig.args[0]), attributes_of(orig)["axis"]
    if len(fields) == 1:
        return [Tuple((grad,))]
    ends, end = [], 0
    for ty in fields[:-1]:
        size = ty.shape[axis]
        if not isinstance(size, int):
            refuse(orig, f"needs known sizes along axis {axis}, got {show(ty)}")
        end += size
        ends.append(end)
    return [call("split", grad, indices_or_sections=ends, axis=axis)]


def _stack(orig: Call, grad: Expr) -> list[Expr]:
    count, axis = len(fields_of(orig.args[0])), attributes_of(orig)["axis"]
    parts = call("split", grad, indices_or_sections=count, axis=axis)
    return [
        Tuple(tuple(call("squeeze", TupleGetItem(parts, i), axis=[axis]) for i in range(count)))
    ]


def _split(orig: Call, grad: Expr) -> list[Expr]:
    return [call("concatenate", grad, axis=attributes_of(orig)["axis"])]


def _strided_slice(orig: Call, grad: Expr) -> list[Expr]:
    """Zeros between and around: along each axis, one slot of `stride` for each element."""
    shape, made = sizes(orig, orig.args[0]), list(sizes(orig, orig))
    site = Site("strided_slice", ("data",), (type_of(orig.args[0]),), attributes_of(orig))
    widths = [[0, 0] for _ in shape]
    for axis, (start, _, step) in resolved_slices(site).items():
        count = made[axis]
        if step < 0:
            grad = call("reverse", grad, axis=axis)
            start, step = start + (count - 1) * step, -step
        if not count:
            widths[axis] = [shape[axis], 0]
            continue
        if step > 1:
            slots = [[0, 0] for _ in made]
            slots.insert(axis + 1, [0, step - 1])
            grad = call("expand_dims", grad, axis=axis + 1)
            grad = call("nn.pad", grad, scalar(0, orig), pad_width=slots)
            made[axis] = count * step
            grad = reshape(grad, made)
            last = (count - 1) * step + 1
            grad = call("strided_slice", grad, begin=[0], end=[last], strides=[1], axes=[axis])
            made[axis] = last
        widths[axis] = [start, shape[axis] - start - made[axis]]
    if any(map(any, widths)):
        grad = call("nn.pad", grad, scalar(0, orig), pad_width=widths)
    return [grad]


def _slice_like(orig: Call, grad: Expr) -> list[Expr]:
    data, like = orig.args
    widths = [[0, n - m] for n, m in zip(sizes(orig, data), sizes(orig, orig), strict=True)]
    return [call("nn.pad", grad, scalar(0, orig), pad_width=widths), zeros_like(like)]


def _pad(orig: Call, grad: Expr) -> list[Expr]:
    """The inner part; what was put around gets the rest."""
    a, (data, value) = attributes_of(orig), orig.args
    if a["pad_mode"] != "constant":
        refuse(orig, f"only with pad_mode='constant', got {a['pad_mode']!r}")
    begin = [before for before, _ in a["pad_width"]]
    end = [b + n for b, n in zip(begin, sizes(orig, data), strict=True)]
    if any(min(pair) < 0 for pair in a["pad_width"]):
        back = [[-before, -after] for before, after in a["pad_width"]]
        inner = call("nn.pad", grad, scalar(0, orig), pad_width=back)
    else:
        inner = call("strided_slice", grad, begin=begin, end=end, strides=[1] * len(begin))
    every = range(len(begin))
    # The difference of two sums, neither of which need be a float16.
    outside, inside = (
        call("cast", x, dtype="float32") if is_half(type_of(data)) else x for x in (grad, inner)
    )
    rest = total(outside, every) - total(inside, every)
    return [inner, reshape_like(cast_like(rest, value), value)]


def _take(orig: Call, grad: Expr) -> list[Expr]:
    """A product with one-hot rows: what was taken several times gets the sum."""
    (data, indices), a = orig.args, attributes_of(orig)
    shape, axis = sizes(orig, data), a["axis"]
    if axis is None:
        shape, axis = [prod(shape)], 0
    axis %= len(shape)
    size, count = shape[axis], prod(sizes(orig, indices))
    dtype = type_of(indices).dtype
    if a["mode"] == "wrap":
        indices = call("floor_mod", indices, constant(size, dtype))
    elif a["mode"] == "clip":
        indices = call("maximum", indices, constant(0, dtype))
        indices = call("minimum", indices, constant(size - 1, dtype))
    like = type_of(data).dtype
    on, off = constant(1, like), constant(0, like)
    rows = call("one_hot", reshape(indices, [1, count]), on, off, depth=size, axis=1, dtype=like)
    parts = reshape(grad, [prod(shape[:axis]), count, prod(shape[axis + 1 :])])
    out = call("nn.batch_matmul", rows, parts)
    return [reshape_like(out, data), zeros_like(orig.args[1])]


def _one_hot(orig: Call, grad: Expr) -> list[Expr]:
    """The on value gets the sum where it stands, the off value the rest."""
    indices, on, off = orig.args
    mask = call(
        "one_hot", indices, constant(np.True_, "bool"), constant(np.False_, "bool"),
        depth=attributes_of(orig)["depth"], axis=attributes_of(orig)["axis"], dtype="bool",
    )  # fmt: skip
    every, zeros = range(len(type_of(orig).shape)), zeros_like(grad)
    return [
        zeros_like(indices),
        cast_like(total(where(mask, grad, zeros), every), on),
        cast_like(total(where(mask, zeros, grad), every), off),
    ]


def _full(orig: Call, grad: Expr) -> list[Expr]:
    every = range(len(type_of(orig).shape))
    return [cast_like(total(grad, every) if every else grad, orig.args[0])]


def _full_like(orig: Call, grad: Expr) -> list[Expr]:
    return [zeros_like(orig.args[0]), cast_like(_full(orig, grad)[0], orig.args[1])]


def _reverse(orig: Call, grad: Expr) -> list[Expr]:
    return [call("reverse", grad, axis=attributes_of(orig)["axis"])]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("dyn.reshape", "dyn.expand_dims", "dyn.squeeze"), _back_to_shape),
    "dyn.broadcast_to": _collapsed,
    "annotation.checkpoint": _same,
    "contrib_reverse_reshape": _back_to_shape,
    "reshape": _back_to_shape,
    "reshape_like": _back_to_shape,
    "nn.batch_flatten": _back_to_shape,
    "squeeze": _back_to_shape,
    "transpose": _transpose,
    "expand_dims": _expand_dims,
    "broadcast_to": _collapsed,
    "broadcast_to_like": _collapsed,
    "collapse_sum_like": _broadcast,
    "collapse_sum_to": _broadcast,
    "tile": _tile,
    "repeat": _repeat,
    "layout_transform": _layout_transform,
    "concatenate": _concatenate,
    "stack": _stack,
    "split": _split,
    "strided_slice": _strided_slice,
    "slice_like": _slice_like,
    "nn.pad": _pad,
    "take": _take,
    "reverse": _reverse,
    "one_hot": _one_hot,
    "full": _full,
    "full_like": _full_like,
    **dict.fromkeys(("zeros", "ones", "zeros_like", "ones_like"), zeros_for_all),
    **dict.fromkeys(("dyn.zeros", "dyn.ones"), zeros_for_all),
}
