"""Operators that rearrange, select or fill."""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Call, Expr
from ..expr import TupleWrapper, const
from ..expr_methods import ExprMethods
from ..make import as_argument, call, of_run
from ..types import Dim

__all__ = [
    "broadcast_to",
    "broadcast_to_like",
    "cast",
    "cast_like",
    "collapse_sum_like",
    "collapse_sum_to",
    "expand_dims",
    "full",
    "full_like",
    "layout_transform",
    "one_hot",
    "repeat",
    "reshape",
    "reshape_like",
    "reverse",
    "reverse_reshape",
    "slice_like",
    "split",
    "squeeze",
    "strided_slice",
    "take",
    "tile",
    "transpose",
    "where",
]

# One size or several, or a constant that holds them.
Sizes = int | Sequence[Dim] | Expr


def cast(data: Expr, dtype: str) -> Call:
    """The elements in another dtype."""
    return call("cast", data, dtype=dtype)


def cast_like(data: Expr, dtype_like: Expr) -> Call:
    """The elements in another tensor's dtype."""
    return call("cast_like", data, dtype_like)


def reshape(data: Expr, newshape: Sizes, allowzero: bool = False) -> Call:
    """The elements in another shape.

    0 copies a size of `data`, -1 is what is left, -2 all remaining sizes, -3 the product of two,
    -4 splits one into the two that follow.
    """
    if of_run(newshape):
        return call("dyn.reshape", data, newshape, allowzero=allowzero)
    return call("reshape", data, newshape=newshape, allowzero=allowzero)


def reverse_reshape(data: Expr, newshape: Sizes) -> Call:
    """As `reshape`, with the codes read from the last axis to the first."""
    return call("contrib_reverse_reshape", data, newshape=newshape)


def reshape_like(
    data: Expr,
    shape_like: Expr,
    lhs_begin: int = 0,
    lhs_end: int | None = None,
    rhs_begin: int = 0,
    rhs_end: int | None = None,
) -> Call:
    """`data` with its axes [lhs_begin, lhs_end) as [rhs_begin, rhs_end) of `shape_like`."""
    return call(
        "reshape_like",
        data,
        shape_like,
        lhs_begin=lhs_begin,
        lhs_end=lhs_end,
        rhs_begin=rhs_begin,
        rhs_end=rhs_end,
    )


def transpose(data: Expr, axes: Sequence[int] | None = None) -> Call:
    """The axes in another order, by default reversed."""
    return call("transpose", data, axes=axes)


def expand_dims(data: Expr, axis: int | Expr, num_newaxis: int = 1) -> Call:
    """New axes of size 1 before `axis`."""
    if of_run(axis):
        return call("dyn.expand_dims", data, axis, num_newaxis=num_newaxis)
    return call("expand_dims", data, axis=axis, num_newaxis=num_newaxis)


def squeeze(data: Expr, axis: int | Sequence[int] | Expr | None = None) -> Call:
    """Without these axes of size 1; by default without any such axis."""
    if of_run(axis):
        return call("dyn.squeeze", data, axis)
    return call("squeeze", data, axis=axis)


def broadcast_to(data: Expr, shape: Sizes) -> Call:
    """`data` repeated to a shape, as NumPy's."""
    if of_run(shape):
        return call("dyn.broadcast_to", data, shape)
    return call("broadcast_to", data, shape=shape)


def broadcast_to_like(data: Expr, broadcast_type: Expr) -> Call:
    """`data` repeated to another tensor's shape."""
    return call("broadcast_to_like", data, broadcast_type)


def collapse_sum_like(data: Expr, collapse_type: Expr) -> Call:
    """The sums that undo a broadcast from the shape of `collapse_type`."""
    return call("collapse_sum_like", data, collapse_type)


def collapse_sum_to(data: Expr, shape: Sequence[int] | Expr) -> Call:
    """The sums that undo a broadcast from `shape`."""
    given = shape if isinstance(shape, ExprMethods) else const(list(shape), "int32")
    return call("collapse_sum_to", data, given, shape=given)


def tile(data: Expr, reps: Sizes) -> Call:
    """`data` repeated as a whole along each axis."""
    if of_run(reps):
        return call("dyn.tile", data, reps)
    return call("tile", data, reps=reps)


def repeat(data: Expr, repeats: int, axis: int) -> Call:
    """Each element repeated along an axis."""
    return call("repeat", data, repeats=repeats, axis=axis)


def layout_transform(data: Expr, src_layout: str, dst_layout: str) -> Call:
    """From one layout to another, as NCHW to NHWC or NCHW4c."""
    return call("layout_transform", data, src_layout=src_layout, dst_layout=dst_layout)


def full(fill_value: Expr, shape: Sizes = (), dtype: str = "") -> Call:
    """A tensor of one value, a scalar; its dtype is by default the value's."""
    if of_run(shape):
        return call("dyn.full", fill_value, shape, dtype=dtype)
    return call("full", fill_value, shape=shape, dtype=dtype)


def full_like(data: Expr, fill_value: Expr) -> Call:
    """A tensor of one value in the shape and dtype of `data`."""
    return call("full_like", data, fill_value)


def one_hot(
    indices: Expr, on_value: Expr, off_value: Expr, depth: int | Expr, axis: int, dtype: str
) -> Call:
    """`on_value` where a new axis of size `depth` has the index, `off_value` elsewhere."""
    if of_run(depth):
        return call("dyn.one_hot", indices, on_value, off_value, depth, axis=axis, dtype=dtype)
    return call("one_hot", indices, on_value, off_value, depth=depth, axis=axis, dtype=dtype)


def where(condition: Expr, x: Expr, y: Expr) -> Call:
    """`x` where the condition holds, else `y`; all broadcast."""
    return call("where", condition, x, y)


def split(data: Expr, indices_or_sections: int | Sequence[int], axis: int = 0) -> TupleWrapper:
    """Equal parts along an axis, or parts that begin at these indices."""
    made = call("split", data, indices_or_sections=indices_or_sections, axis=axis)
    given = made.attrs["indices_or_sections"]
    return TupleWrapper(made, given if isinstance(given, int) else len(given) + 1)


def strided_slice(
    data: Expr,
    begin: Sizes,
    end: Sizes,
    strides: Sizes | None = None,
    axes: Sequence[int] | None = None,
    slice_mode: str = "end",
) -> Call:
    """`data[begin:end:strides]` along the first axes, or along `axes`.

    `slice_mode` "size" takes `end` for the size of each slice, of which -1 is all that is left.
    """
    strides = [1] if strides is None or strides == [] else strides
    if of_run(begin, end, strides):
        if axes is not None:
            raise ValueError(f"strided_slice: axes must be known with the bounds, got {axes}")
        bounds = [as_argument(value, "int64") for value in (begin, end, strides)]
        return call("dyn.strided_slice", data, *bounds, slice_mode=slice_mode)
    return call(
        "strided_slice",
        data,
        begin=begin,
        end=end,
        strides=strides,
        slice_mode=slice_mode,
        axes=axes,
    )


def slice_like(data: Expr, shape_like: Expr, axes: Sequence[int] | None = None) -> Call:
    """The beginning of `data`, as large as `shape_like` along `axes`, by default all."""
    return call("slice_like", data, shape_like, axes=axes)


def take(
    data: Expr, indices: Expr, axis: int | None = None, batch_dims: int = 0, mode: str = "clip"
) -> Call:
    """The elements of these indices along an axis, or of `data` flattened.

    `mode` says what an index out of range is: "clip", "wrap" or "fast" (which must not be one).
    """
    return call("take", data, indices, batch_dims=batch_dims, axis=axis, mode=mode)


def reverse(data: Expr, axis: int) -> Call:
    """The elements in reverse order along an axis."""
    return call("reverse", data, axis=axis)
