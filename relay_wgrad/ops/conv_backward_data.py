"""`relax.nn.conv2d_backward_data(grad, weight, shape)`: dgrad, the gradient by the input.

    dx[n, c, h, w] = sum over k of c's group and over r, s, p, q with
                     h = p*stride_h + r*dilation_h - top  and  w = q*stride_w + s*dilation_w - left
        of grad[n, k, p, q] * weight[k, c, r, s]

Also known as `cudnnConvolutionBackwardData`, CUTLASS's dgrad, `torch.nn.grad.conv2d_input`, and as
the transposed convolution.  Strides leave the input's size undetermined, so the result's shape is
an argument; pixels that no tap reaches are zero.

`relax.nn.conv3d_backward_data` is the same with a depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tvm import relax, tirx
from tvm.ir import is_prim_expr

from .. import opdef
from ..attrs import as_int, rank_of, read_attrs
from ..layouts import ACTIVATIONS, KERNELS
from ..problem import ConvKind
from ..ranks import OWN, for_rank
from ..relation import Relation
from .algebra import DGRAD_KEYS, DGRADS, dgrad_call, get_op, operands
from .conv import Ints
from .gradient_records import gradient_record


class BackwardData(Protocol):
    """The constructor of a convolution's gradient by its input."""

    def __call__(
        self, grad: relax.Expr, weight: relax.Expr, shape: relax.Expr | Sequence[Any],
        strides: Ints = ..., padding: Ints = ..., dilation: Ints = ..., groups: int = 1,
        grad_layout: str = ..., data_layout: str = ..., kernel_layout: str = ...,
        out_dtype: str | None = None,
    ) -> relax.Expr: ...  # fmt: skip


def _backward_data(rank: int) -> BackwardData:
    op, ones, zeros = f"conv{rank}d_backward_data", (1,) * rank, (0,) * rank

    def construct(
        grad: relax.Expr,
        weight: relax.Expr,
        shape: relax.Expr | Sequence[Any],
        strides: int | Sequence[int] = ones,
        padding: int | Sequence[int] = zeros,
        dilation: int | Sequence[int] = ones,
        groups: int = 1,
        grad_layout: str = ACTIVATIONS[rank],
        data_layout: str = ACTIVATIONS[rank],
        kernel_layout: str = KERNELS[rank],
        out_dtype: str | None = None,
    ) -> relax.Expr:
        """The gradient of `conv{rank}d(data, weight)` by `data`, given its output's gradient.

        Also the transposed convolution, whose data is `grad`.

        Parameters
        ----------
        grad : tensor of shape (N, K, {out}) in `grad_layout`: the gradient of the convolution's
            output.
        weight : tensor of shape (K, C/groups, {taps}) in `kernel_layout`: the convolution's
            weight.
        shape : the result's shape in `data_layout`, ints or symbolic, or an expression of that
            type.
        strides, padding, dilation, groups : those of the convolution; padding is
            ({ends}), or one for each dimension, or one int.
        grad_layout, data_layout : permutations of {activation}.
        kernel_layout : a permutation of {kernel} in the *forward* convolution's letters: O counts
            K, I counts C/groups.
        out_dtype : the result's dtype, by default the operands'.  Sums are float32 (float64 for
            float64 operands) whatever it is.

        Returns
        -------
        relax.Expr : a call whose result has the shape `shape`.

        Raises
        ------
        TypeError, ValueError : for attributes of wrong type or length here; for values and shapes
            that do not fit when the call's type is inferred.
        RuntimeError : before `relay_wgrad.register()`.
        """
        given = {
            "strides": strides, "padding": padding, "dilation": dilation, "groups": groups,
            "grad_layout": grad_layout, "data_layout": data_layout,
            "kernel_layout": kernel_layout, "out_dtype": out_dtype,
        }  # fmt: skip
        get_op(DGRADS[rank])
        operands(op, grad=grad, weight=weight)
        if not isinstance(shape, relax.Expr):
            shape = relax.ShapeExpr(_sizes(op, shape))
        return dgrad_call(grad, weight, shape, read_attrs(op, given, DGRAD_KEYS))

    return for_rank(construct, op, rank)


def _sizes(op: str, shape: Any) -> list[Any]:
    """Ints and symbolic integers, as a ShapeExpr takes them."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"{op}: shape must be the result's {rank_of(op) + 2} sizes, got {shape!r}")
    return [_size(op, size) for size in shape]


def _size(op: str, size: Any) -> Any:
    if not isinstance(size, relax.Expr) or not is_prim_expr(size) or isinstance(size, tirx.IntImm):
        return as_int(op, "shape", size)
    if str(size.ty) != "int64":
        raise TypeError(f"{op}: shape must be int64 where it is symbolic, got {size} of {size.ty}")
    return size


def _typed(rel: Relation, args: Sequence[relax.Expr]) -> relax.TensorType:
    """(grad, weight, shape) -> shape."""
    a = rel.attrs
    grad = rel.tensor("grad", args[0], a.grad_layout, a.activation)
    weight = rel.tensor("weight", args[1], a.kernel_layout, a.kernel)
    data = rel.shape("shape", args[2], a.data_layout)
    rel.check_conv(data, weight, grad)
    return rel.result(args[:2], data, a.data_layout, a.activation)


def _define(rank: int) -> opdef.OpDef:
    return gradient_record(
        f"conv{rank}d_backward_data", DGRADS[rank], ConvKind.DGRAD, DGRAD_KEYS,
        summary=f"{rank}-D convolution's gradient by its input (dgrad)",
        arguments=(
            ("grad", "Tensor", "The gradient of the convolution's output."),
            ("weight", "Tensor", "The convolution's weight."),
            ("shape", "Shape", "The shape of the convolution's input."),
        ),
        constructor=CONSTRUCTORS[rank], typed=_typed, made=dgrad_call,
    )  # fmt: skip


CONSTRUCTORS = {rank: _backward_data(rank) for rank in OWN}
conv2d_backward_data, conv3d_backward_data = CONSTRUCTORS.values()
DEFS = {rank: _define(rank) for rank in OWN}
