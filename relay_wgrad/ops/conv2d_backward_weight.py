"""`relax.nn.conv2d_backward_weight(grad, data)`: wgrad, a convolution's gradient by its weight.

    dw[k, c, r, s] = sum over n, p, q of
        grad[n, k, p, q] * data[n, g*C/groups + c, p*stride_h + r*dilation_h - top,
                                                   q*stride_w + s*dilation_w - left]

with g the group of k, and data zero outside the image.  Also known as
`cudnnConvolutionBackwardFilter`, CUTLASS's wgrad, `torch.nn.grad.conv2d_weight` and, in Relay,
`nn.conv2d_backward_weight` (whose argument order this is).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from .. import opdef
from ..attrs import rank_of, read_attrs
from ..layouts import ACTIVATION, KERNEL
from ..problem import ConvKind
from ..relation import Relation
from .algebra import WGRAD_KEYS, WGRADS, get_op, operands, wgrad_call
from .dedicated import dedicated

OP = "conv2d_backward_weight"


def conv2d_backward_weight(
    grad: relax.Expr,
    data: relax.Expr,
    kernel_size: int | Sequence[int],
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    groups: int = 1,
    grad_layout: str = ACTIVATION,
    data_layout: str = ACTIVATION,
    kernel_layout: str = KERNEL,
    out_dtype: str | None = None,
) -> relax.Expr:
    """The gradient of `conv2d(data, weight)` by `weight`, given its output's gradient.

    Parameters
    ----------
    grad : tensor of shape (N, K, P, Q) in `grad_layout`: the gradient of the convolution's output.
    data : tensor of shape (N, C, H, W) in `data_layout`: the convolution's input.
    kernel_size : (R, S), which strides leave undetermined.
    strides, padding, dilation, groups : those of the convolution; padding is (top, left, bottom,
        right), or (vertical, horizontal), or one int.
    grad_layout, data_layout : permutations of NCHW.
    kernel_layout : the result's, a permutation of OIHW; O counts K, I counts C/groups.
    out_dtype : the result's dtype, by default the operands'.  Sums are float32 (float64 for
        float64 operands) whatever it is.

    Returns
    -------
    relax.Expr : a call whose result has the shape (K, C/groups, R, S) in `kernel_layout`.

    Raises
    ------
    TypeError, ValueError : for attributes of wrong type or length here; for values and shapes that
        do not fit when the call's type is inferred.
    RuntimeError : before `relay_wgrad.register()`.
    """
    return construct(
        OP, grad, data,
        kernel_size=kernel_size, strides=strides, padding=padding, dilation=dilation, groups=groups,
        grad_layout=grad_layout, data_layout=data_layout, kernel_layout=kernel_layout,
        out_dtype=out_dtype,
    )  # fmt: skip


def construct(op: str, grad: relax.Expr, data: relax.Expr, **given: Any) -> relax.Expr:
    """What the constructors of all dimensions do."""
    get_op(WGRADS[rank_of(op)])
    operands(op, grad=grad, data=data)
    return wgrad_call(grad, data, read_attrs(op, given, WGRAD_KEYS))


def _typed(rel: Relation, args: Sequence[relax.Expr]) -> relax.TensorType:
    """(grad, data) -> (K, C/groups, R, S)."""
    a = rel.attrs
    grad = rel.tensor("grad", args[0], a.grad_layout, a.activation)
    data = rel.tensor("data", args[1], a.data_layout, a.activation)
    rel.check_conv(data, None, grad)
    assert a.kernel_size is not None
    shape = None
    if grad is not None and data is not None:
        shape = (grad[1], data[1] // a.groups, *a.kernel_size)
    return rel.result(args[:2], shape, a.kernel_layout, a.kernel)


def define(op: str, constructor: opdef.Rule) -> opdef.OpDef:
    """The record of the weight gradient `op`."""
    rank = rank_of(op)
    return dedicated(
        op, WGRADS[rank], ConvKind.WGRAD, WGRAD_KEYS,
        summary=f"{rank}-D convolution's gradient by its weight (wgrad)",
        arguments=(
            ("grad", "Tensor", "The gradient of the convolution's output."),
            ("data", "Tensor", "The convolution's input."),
        ),
        constructor=constructor, typed=_typed, made=wgrad_call,
    )  # fmt: skip


DEF = define(OP, conv2d_backward_weight)
