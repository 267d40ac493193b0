"""`relax.nn.conv2d_backward_weight(grad, data)`: wgrad, a convolution's gradient by its weight.

    dw[k, c, r, s] = sum over n, p, q of
        grad[n, k, p, q] * data[n, g*C/groups + c, p*stride_h + r*dilation_h - top,
                                                   q*stride_w + s*dilation_w - left]

with g the group of k, and data zero outside the image.  Also known as
`cudnnConvolutionBackwardFilter`, CUTLASS's wgrad, `torch.nn.grad.conv2d_weight` and, in Relay,
`nn.conv2d_backward_weight` (whose argument order this is).

`relax.nn.conv3d_backward_weight` is the same with a depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tvm import relax

from .. import opdef
from ..attrs import read_attrs
from ..layouts import ACTIVATIONS, KERNELS
from ..problem import ConvKind
from ..ranks import OWN, for_rank
from ..relation import Relation
from .algebra import WGRAD_KEYS, WGRADS, get_op, operands, wgrad_call
from .conv import Ints
from .gradient_records import gradient_record


class BackwardWeight(Protocol):
    """The constructor of a convolution's gradient by its weight."""

    def __call__(
        self, grad: relax.Expr, data: relax.Expr, kernel_size: Ints, strides: Ints = ...,
        padding: Ints = ..., dilation: Ints = ..., groups: int = 1, grad_layout: str = ...,
        data_layout: str = ..., kernel_layout: str = ..., out_dtype: str | None = None,
    ) -> relax.Expr: ...  # fmt: skip


def _backward_weight(rank: int) -> BackwardWeight:
    op, ones, zeros = f"conv{rank}d_backward_weight", (1,) * rank, (0,) * rank

    def construct(
        grad: relax.Expr,
        data: relax.Expr,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = ones,
        padding: int | Sequence[int] = zeros,
        dilation: int | Sequence[int] = ones,
        groups: int = 1,
        grad_layout: str = ACTIVATIONS[rank],
        data_layout: str = ACTIVATIONS[rank],
        kernel_layout: str = KERNELS[rank],
        out_dtype: str | None = None,
    ) -> relax.Expr:
        """The gradient of `conv{rank}d(data, weight)` by `weight`, given its output's gradient.

        Parameters
        ----------
        grad : tensor of shape (N, K, {out}) in `grad_layout`: the gradient of the convolution's
            output.
        data : tensor of shape (N, C, {pixels}) in `data_layout`: the convolution's input.
        kernel_size : ({taps}), which strides leave undetermined.
        strides, padding, dilation, groups : those of the convolution; padding is
            ({ends}), or one for each dimension, or one int.
        grad_layout, data_layout : permutations of {activation}.
        kernel_layout : the result's, a permutation of {kernel}; O counts K, I counts C/groups.
        out_dtype : the result's dtype, by default the operands'.  Sums are float32 (float64 for
            float64 operands) whatever it is.

        Returns
        -------
        relax.Expr : a call whose result has the shape (K, C/groups, {taps}) in `kernel_layout`.

        Raises
        ------
        TypeError, ValueError : for attributes of wrong type or length here; for values and shapes
            that do not fit when the call's type is inferred.
        RuntimeError : before `relay_wgrad.register()`.
        """
        given = {
            "kernel_size": kernel_size, "strides": strides, "padding": padding,
            "dilation": dilation, "groups": groups, "grad_layout": grad_layout,
            "data_layout": data_layout, "kernel_layout": kernel_layout, "out_dtype": out_dtype,
        }  # fmt: skip
        get_op(WGRADS[rank])
        operands(op, grad=grad, data=data)
        return wgrad_call(grad, data, read_attrs(op, given, WGRAD_KEYS))

    return for_rank(construct, op, rank)


def typed(rel: Relation, args: Sequence[relax.Expr]) -> relax.TensorType:
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


def _define(rank: int) -> opdef.OpDef:
    return gradient_record(
        f"conv{rank}d_backward_weight", WGRADS[rank], ConvKind.WGRAD, WGRAD_KEYS,
        summary=f"{rank}-D convolution's gradient by its weight (wgrad)",
        arguments=(
            ("grad", "Tensor", "The gradient of the convolution's output."),
            ("data", "Tensor", "The convolution's input."),
        ),
        constructor=CONSTRUCTORS[rank], typed=typed, made=wgrad_call,
    )  # fmt: skip


CONSTRUCTORS = {rank: _backward_weight(rank) for rank in OWN}
conv2d_backward_weight, conv3d_backward_weight = CONSTRUCTORS.values()
DEFS = {rank: _define(rank) for rank in OWN}
