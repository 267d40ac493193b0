"""Operators that read and write by index, and that count and sum along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ast import Call, Constant, Expr, Tuple
from ..expr import const
from ..expr_methods import ExprMethods
from ..infer import infer_expr
from ..make import Sizes, as_argument, call, of_run
from ..types import TensorType
from .generated.tensor import cast_like, ones

__all__ = [
    "arange",
    "matrix_set_diag",
    "segment_sum",
    "sparse_to_dense",
    "stft",
    "strided_set",
]


def arange(
    start: Expr, stop: Expr | None = None, step: Expr | None = None, dtype: str = "float32"
) -> Call:
    """start, start + step, … below `stop`; of one argument: 0, 1, … below it."""
    step = const(1, dtype) if step is None else step
    if stop is None:
        start, stop = const(0, dtype), start
    given = {"start": start, "stop": stop, "step": step}
    known = {k: v if isinstance(v, Constant) else None for k, v in given.items()}
    return call("arange", *given.values(), dtype=dtype, **known)


def strided_set(
    data: Expr, v: Expr, begin: Sizes, end: Sizes, strides: Sizes | None = None
) -> Call:
    """`data` with `v` for its slice `data[begin:end:strides]`; the bounds are vectors."""
    bounds = (begin, end, [1] if strides is None else strides)
    return call("strided_set", data, v, *(as_argument(bound, "int32") for bound in bounds))


def matrix_set_diag(
    data: Expr, diagonal: Expr, k: int | Sequence[int] = 0, align: str = "RIGHT_LEFT"
) -> Call:
    """Matrices with other diagonals, the k-th or those from the first k to the second.

    `align` says at which end shorter diagonals stand: those above, and those below.
    """
    ends = (k,) if isinstance(k, int) else tuple(k)
    return call(
        "matrix_set_diag", data, diagonal, k1=ends[0], k2=ends[min(1, len(ends) - 1)],
        super_diag_right_align=align[:5] == "RIGHT", sub_diag_right_align=align[-5:] == "RIGHT",
    )  # fmt: skip


def segment_sum(data: Expr, segment_ids: Expr, num_segments: int | Expr | None = None) -> Call:
    """The sums of the rows of `data` of each segment; by default as many as the ids count.

    Rows beyond the ids belong to no segment.
    """
    if not num_segments and isinstance(segment_ids, Constant):
        num_segments = int(segment_ids.data.max()) + 1
    if isinstance(num_segments, Constant):
        num_segments = int(num_segments.data.reshape(()))
    types = [infer_expr(x).checked_type for x in (data, segment_ids)]
    ty, ids_type = (t for t in types if isinstance(t, TensorType))
    if len(ids_type.shape) != 1:
        raise ValueError(f"segment_sum: segment_ids must be a vector, got {ids_type}")
    if not all(isinstance(size, int) for size in (*ty.shape, *ids_type.shape)):
        return _segments_of_run(data, segment_ids, num_segments or None, len(ty.shape), ty.dtype)
    rest, (count,) = ty.concrete_shape[1:], ids_type.concrete_shape
    rows = call("strided_slice", data, begin=[0], end=[count], strides=[1], axes=[0])
    ids = call("reshape", segment_ids, newshape=[count] + [1] * len(rest))
    ids = call("broadcast_to", ids, shape=[count, *rest])
    if isinstance(num_segments, int) and num_segments:
        zeros = call("zeros", shape=[num_segments, *rest], dtype=ty.dtype)
    else:
        size = _segment_count(segment_ids, num_segments)
        line = call("dyn.zeros", size, dtype=ty.dtype)
        zeros = call("reshape", line, newshape=[-1] + [1] * len(rest)) if rest else line
        zeros = call("tile", zeros, reps=[1, *rest]) if rest else zeros
    return call("scatter_elements", zeros, ids, rows, axis=0, reduction="add")


def _segment_count(ids: Expr, count: int | Expr | None) -> Expr:
    """How many segments there are, as an int64 vector of one."""
    if isinstance(count, int) and count:
        return const(np.array([count]), "int64")
    if isinstance(count, ExprMethods):
        return call("reshape", call("cast", count, dtype="int64"), newshape=[1])
    highest = call("max", call("cast", ids, dtype="int64"), axis=[0], keepdims=True)
    return call("add", highest, const(np.array([1]), "int64"))


def _segments_of_run(
    data: Expr, ids: Expr, count: int | Expr | None, ndim: int, dtype: str
) -> Call:
    """As `segment_sum`, of sizes that the run knows."""
    wide = call("cast", ids, dtype="int64")
    size = _segment_count(ids, count)
    rows = call("slice_like", data, ids, axes=[0])
    if ndim == 1:
        zeros = call("dyn.zeros", size, dtype=dtype)
        return call("scatter_elements", zeros, wide, rows, axis=0, reduction="add")
    sizes = call("shape_of", data, dtype="int64")
    rest = call("strided_slice", sizes, begin=[1], end=[ndim], strides=[1], axes=[0])
    zeros = call("dyn.zeros", call("concatenate", Tuple((size, rest)), axis=0), dtype=dtype)
    column = call("expand_dims", wide, axis=1, num_newaxis=ndim - 1)
    spread = call("dyn.broadcast_to", column, call("shape_of", rows, dtype="int64"))
    return call("scatter_elements", zeros, spread, rows, axis=0, reduction="add")


def sparse_to_dense(
    sparse_indices: Expr,
    output_shape: Sizes,
    sparse_values: Expr,
    default_value: Expr | float = 0,
) -> Call:
    """A tensor of the default with values at places: (), (n,) or (n, axes)."""
    fill = default_value
    if not isinstance(fill, ExprMethods):
        fill = cast_like(const(fill), sparse_values)
    if of_run(output_shape):
        return call("dyn.sparse_to_dense", sparse_indices, output_shape, sparse_values, fill)
    return call("sparse_to_dense", sparse_indices, sparse_values, fill, output_shape=output_shape)


def stft(
    data: Expr,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Expr | None = None,
    normalized: bool = False,
    onesided: bool = True,
) -> Call:
    """Fourier transforms of windows of each signal: (b, n) to (b, frequencies, windows, 2)."""
    hop_length = n_fft // 4 if hop_length is None else hop_length
    win_length = n_fft if win_length is None else win_length
    window = ones([n_fft], "int32") if window is None else window
    return call(
        "stft", data, window, n_fft=n_fft, hop_length=hop_length, win_length=win_length,
        normalized=normalized, onesided=onesided,
    )  # fmt: skip
