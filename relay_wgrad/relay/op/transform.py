"""Operators that rearrange, select or fill: Relay 0.19's path of those that records make too."""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Call, Expr
from ..expr import const
from ..expr_methods import ExprMethods
from ..make import Sizes, as_argument, call, of_run
from .generated.tensor import *  # noqa: F403

__all__ = ["collapse_sum_to", "reverse_reshape", "strided_slice"]


def reverse_reshape(data: Expr, newshape: Sizes) -> Call:
    """As `reshape`, with the codes read from the last axis to the first."""
    return call("contrib_reverse_reshape", data, newshape=newshape)


def collapse_sum_to(data: Expr, shape: Sequence[int] | Expr) -> Call:
    """The sums that undo a broadcast from `shape`."""
    given = shape if isinstance(shape, ExprMethods) else const(list(shape), "int32")
    return call("collapse_sum_to", data, given, shape=given)


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
