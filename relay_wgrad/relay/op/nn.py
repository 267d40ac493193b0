"""`relay.nn`: operators of neural networks."""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Call, Expr, TupleGetItem
from ..expr import TupleWrapper, const
from ..expr_methods import ExprMethods
from ..make import call, of_run
from .conv import avg_pool2d_grad as avg_pool2d_grad
from .conv import conv2d_backward_weight as conv2d_backward_weight
from .conv import conv3d_backward_weight as conv3d_backward_weight
from .conv import deformable_conv2d as deformable_conv2d
from .conv import global_avg_pool1d as global_avg_pool1d
from .conv import global_avg_pool3d as global_avg_pool3d
from .conv import global_max_pool1d as global_max_pool1d
from .conv import global_max_pool3d as global_max_pool3d
from .conv import max_pool2d_grad as max_pool2d_grad
from .made.nn import *  # noqa: F403
from .made.nn import dense as dense


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


def batch_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    moving_mean: Expr,
    moving_var: Expr,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> TupleWrapper:
    """(data normalized by the moving statistics, moving_mean, moving_var)."""
    made = call(
        "nn.batch_norm",
        data,
        gamma,
        beta,
        moving_mean,
        moving_var,
        axis=axis,
        epsilon=epsilon,
        center=center,
        scale=scale,
    )
    return TupleWrapper(made, 3)
