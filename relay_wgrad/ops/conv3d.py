"""Convolutions of three dimensions: upstream's `relax.nn.conv3d` and `relax.nn.conv3d_transpose`,
and the gradients `relax.nn.conv3d_backward_data` and `relax.nn.conv3d_backward_weight`.

What the operators of two dimensions are (their homes have the formulas), with a depth: data
(N, C, D, H, W), weight (K, C/groups, T, R, S), output and its gradient (N, K, Z, P, Q).  Rules and
gradients are the same, by the number of strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..attrs import read_conv3d, read_conv3d_transpose
from ..layouts import ACTIVATIONS, KERNELS
from . import conv2d, conv2d_backward_data, conv2d_backward_weight, conv2d_transpose
from .algebra import fprop_call, operands

ACTIVATION, KERNEL = ACTIVATIONS[3], KERNELS[3]


def conv3d(
    data: relax.Expr,
    weight: relax.Expr,
    strides: int | Sequence[int] = (1, 1, 1),
    padding: int | Sequence[int] = (0, 0, 0),
    dilation: int | Sequence[int] = (1, 1, 1),
    groups: int = 1,
    data_layout: str = ACTIVATION,
    kernel_layout: str = KERNEL,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> relax.Expr:
    """Upstream's `relax.op.nn.conv3d`, with its attributes checked in Python first.

    Parameters
    ----------
    data : tensor of shape (N, C, D, H, W) in `data_layout`.
    weight : tensor of shape (K, C/groups, T, R, S) in `kernel_layout`.
    padding : (front, top, left, back, bottom, right), or one for each dimension, or one int.
    out_layout : the result's layout, by default `data_layout`.
    out_dtype : the result's dtype, by default the operands'.

    Returns
    -------
    relax.Expr : a call whose result has the shape (N, K, Z, P, Q) in `out_layout`.

    Raises
    ------
    TypeError, ValueError : naming attribute and value.
    """
    op = "conv3d"
    a = conv2d.forward_attrs(
        op, strides, padding, dilation, groups, data_layout, kernel_layout, out_layout, out_dtype
    )
    operands(op, data=data, weight=weight)
    return fprop_call(data, weight, a)


def conv3d_backward_data(
    grad: relax.Expr,
    weight: relax.Expr,
    shape: relax.Expr | Sequence[Any],
    strides: int | Sequence[int] = (1, 1, 1),
    padding: int | Sequence[int] = (0, 0, 0),
    dilation: int | Sequence[int] = (1, 1, 1),
    groups: int = 1,
    grad_layout: str = ACTIVATION,
    data_layout: str = ACTIVATION,
    kernel_layout: str = KERNEL,
    out_dtype: str | None = None,
) -> relax.Expr:
    """The gradient of `conv3d(data, weight)` by `data`, given its output's gradient.

    Also the transposed convolution, whose data is `grad`.

    Parameters
    ----------
    grad : tensor of shape (N, K, Z, P, Q) in `grad_layout`: the gradient of the convolution's
        output.
    weight : tensor of shape (K, C/groups, T, R, S) in `kernel_layout`: the convolution's weight.
    shape : the result's shape in `data_layout`, ints or symbolic, or an expression of that type.
    strides, padding, dilation, groups : those of the convolution; padding is (front, top, left,
        back, bottom, right), or one for each dimension, or one int.
    grad_layout, data_layout : permutations of NCDHW.
    kernel_layout : a permutation of OIDHW in the *forward* convolution's letters: O counts K, I
        counts C/groups.
    out_dtype : the result's dtype, by default the operands'.  Sums are float32 (float64 for
        float64 operands) whatever it is.

    Returns
    -------
    relax.Expr : a call whose result has the shape `shape`.

    Raises
    ------
    TypeError, ValueError : for attributes of wrong type or length here; for values and shapes that
        do not fit when the call's type is inferred.
    RuntimeError : before `relay_wgrad.register()`.
    """
    return conv2d_backward_data.construct(
        "conv3d_backward_data", grad, weight, shape,
        strides=strides, padding=padding, dilation=dilation, groups=groups, grad_layout=grad_layout,
        data_layout=data_layout, kernel_layout=kernel_layout, out_dtype=out_dtype,
    )  # fmt: skip


def conv3d_backward_weight(
    grad: relax.Expr,
    data: relax.Expr,
    kernel_size: int | Sequence[int],
    strides: int | Sequence[int] = (1, 1, 1),
    padding: int | Sequence[int] = (0, 0, 0),
    dilation: int | Sequence[int] = (1, 1, 1),
    groups: int = 1,
    grad_layout: str = ACTIVATION,
    data_layout: str = ACTIVATION,
    kernel_layout: str = KERNEL,
    out_dtype: str | None = None,
) -> relax.Expr:
    """The gradient of `conv3d(data, weight)` by `weight`, given its output's gradient.

    Parameters
    ----------
    grad : tensor of shape (N, K, Z, P, Q) in `grad_layout`: the gradient of the convolution's
        output.
    data : tensor of shape (N, C, D, H, W) in `data_layout`: the convolution's input.
    kernel_size : (T, R, S), which strides leave undetermined.
    strides, padding, dilation, groups : those of the convolution; padding is (front, top, left,
        back, bottom, right), or one for each dimension, or one int.
    grad_layout, data_layout : permutations of NCDHW.
    kernel_layout : the result's, a permutation of OIDHW; O counts K, I counts C/groups.
    out_dtype : the result's dtype, by default the operands'.  Sums are float32 (float64 for
        float64 operands) whatever it is.

    Returns
    -------
    relax.Expr : a call whose result has the shape (K, C/groups, T, R, S) in `kernel_layout`.

    Raises
    ------
    TypeError, ValueError : for attributes of wrong type or length here; for values and shapes that
        do not fit when the call's type is inferred.
    RuntimeError : before `relay_wgrad.register()`.
    """
    return conv2d_backward_weight.construct(
        "conv3d_backward_weight", grad, data,
        kernel_size=kernel_size, strides=strides, padding=padding, dilation=dilation, groups=groups,
        grad_layout=grad_layout, data_layout=data_layout, kernel_layout=kernel_layout,
        out_dtype=out_dtype,
    )  # fmt: skip


DEFS = (
    conv2d.define("conv3d", read_conv3d),
    conv2d_transpose.define("conv3d_transpose", read_conv3d_transpose),
    conv2d_backward_weight.define("conv3d_backward_weight", conv3d_backward_weight),
    conv2d_backward_data.define("conv3d_backward_data", conv3d_backward_data),
)
