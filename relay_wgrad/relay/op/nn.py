"""`relay.nn`: operators of neural networks."""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Call, Expr, TupleGetItem
from ..expr import const
from ..expr_methods import ExprMethods
from ..make import call, of_run
from .generated.nn import *  # noqa: F403
from .generated.nn import (
    adaptive_avg_pool1d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool3d,
)
from .generated.nn import dense as dense


def matmul(
    tensor_a: Expr,
    tensor_b: Expr,
    units: int | None = None,
    out_dtype: str = "",
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Call:
    """A product of matrices; of a and bᵀ it is `nn.dense`, as in Relay."""
    if transpose_b and not transpose_a:
        return dense(tensor_a, tensor_b, units, out_dtype)
    return call(
        "nn.matmul",
        tensor_a,
        tensor_b,
        units=units,
        out_dtype=out_dtype,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )


def pad(
    data: Expr,
    pad_width: Sequence[Sequence[int]] | Expr,
    pad_value: float | Expr = 0,
    pad_mode: str = "constant",
) -> Call:
    """`data` with (before, after) more elements along each axis."""
    value = pad_value if isinstance(pad_value, ExprMethods) else const(pad_value)
    if of_run(pad_width):
        return call("dyn.nn.pad", data, pad_width, value, pad_mode=pad_mode)
    return call("nn.pad", data, value, pad_width=pad_width, pad_mode=pad_mode)


def dropout(data: Expr, rate: float = 0.5) -> TupleGetItem:
    """The identity when it is run, as Relay's."""
    return TupleGetItem(dropout_raw(data, rate), 0)


def dropout_raw(data: Expr, rate: float = 0.5) -> Call:
    """(the data, a mask of ones)."""
    return call("nn.dropout", data, rate=rate)


def global_max_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """The maximum along W, which becomes 1."""
    return adaptive_max_pool1d(data, 1, layout, out_layout)


def global_avg_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """The mean along W, which becomes 1."""
    return adaptive_avg_pool1d(data, 1, layout, out_layout)


def global_max_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """The maximum of each channel of a volume."""
    return adaptive_max_pool3d(data, 1, layout, out_layout)


def global_avg_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """The mean of each channel of a volume."""
    return adaptive_avg_pool3d(data, 1, layout, out_layout)
