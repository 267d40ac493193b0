"""`relax.nn.conv2d_transpose(data, weight)`: what users write for a transposed convolution.

A transposed convolution is a dgrad: its data plays the gradient, its output the data, and its
output's size is (H-1)*stride - padding + dilation*(R-1) + 1 + output_padding.  Its weight's letters
are its own: I counts its input channels (the forward convolution's K), O its output channels per
group.  Hence its gradient by its data is an fprop, and by its weight a wgrad with data and gradient
swapped.  Also known as deconvolution, fractionally strided convolution, `ConvTranspose`.

`relax.nn.conv3d_transpose` is the same with a depth, `relax.nn.conv1d_transpose` with one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tvm import relax

from ..attrs import ConvAttrs, dtype_name, ends, layout, per_dimension, read_conv_transpose
from ..layouts import ACTIVATION, is_permutation, swap_io
from ..problem import ConvKind, transposed_size
from ..ranks import RANKS
from ..relation import Relation
from .algebra import TRANSPOSED, WGRAD_NAME, fprop_call, get_op, operands, wgrad_call
from .conv import check_operands, define, positive_groups
from .conv_backward_weight import typed as typed_weight

OP = "conv2d_transpose"
KERNEL_TRANSPOSED = "IOHW"


def conv2d_transpose(
    data: relax.Expr,
    weight: relax.Expr,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    output_padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    groups: int = 1,
    data_layout: str = ACTIVATION,
    kernel_layout: str = KERNEL_TRANSPOSED,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> relax.Expr:
    """Upstream's `relax.op.nn.conv2d_transpose`, with its attributes checked in Python first.

    Parameters
    ----------
    data : tensor of shape (N, C_in, H, W) in `data_layout`.
    weight : tensor of shape (C_in, C_out/groups, R, S) in `kernel_layout`, I counting C_in.
    output_padding : rows and columns added at the bottom and right, each less than its stride.

    Returns
    -------
    relax.Expr : a call whose result has the shape (N, C_out, H', W') in `out_layout`, with
        H' = (H-1)*stride - top - bottom + dilation*(R-1) + 1 + output_padding.

    Raises
    ------
    TypeError, ValueError : naming attribute and value.
    """
    operands(OP, data=data, weight=weight)
    return TRANSPOSED[2](
        data,
        weight,
        per_dimension(OP, "strides", strides, 2),
        ends(OP, padding, 2),
        per_dimension(OP, "output_padding", output_padding, 2),
        per_dimension(OP, "dilation", dilation, 2),
        positive_groups(OP, groups),
        layout(OP, "data_layout", data_layout),
        layout(OP, "kernel_layout", kernel_layout),
        layout(OP, "out_layout", out_layout or data_layout),
        dtype_name(OP, out_dtype),
    )


def conv2d_transpose_backward_data(
    grad: relax.Expr,
    weight: relax.Expr,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    groups: int = 1,
    grad_layout: str = ACTIVATION,
    data_layout: str = ACTIVATION,
    kernel_layout: str = KERNEL_TRANSPOSED,
    out_dtype: str | None = None,
) -> relax.Expr:
    """A transposed convolution's gradient by its data: `conv2d(grad, weight)`, the same weight.

    Shapes: grad (N, C_out, H', W'), weight (C_in, C_out/groups, R, S) with I counting C_in, as the
    transposed convolution has it; the result is (N, C_in, H, W) in `data_layout`.
    """
    op = f"{OP}_backward_data"
    operands(op, grad=grad, weight=weight)
    a = _forward_attrs(
        op, strides, padding, dilation, groups, grad_layout, data_layout, kernel_layout, out_dtype
    )
    _check_here(op, a, check_operands, (grad, weight))
    return fprop_call(grad, weight, a)


def conv2d_transpose_backward_weight(
    grad: relax.Expr,
    data: relax.Expr,
    kernel_size: int | Sequence[int],
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    groups: int = 1,
    grad_layout: str = ACTIVATION,
    data_layout: str = ACTIVATION,
    kernel_layout: str = KERNEL_TRANSPOSED,
    out_dtype: str | None = None,
) -> relax.Expr:
    """A transposed convolution's gradient by its weight: wgrad with data and gradient swapped.

    Shapes: grad (N, C_out, H', W'), data (N, C_in, H, W); the result is
    (C_in, C_out/groups, R, S) in `kernel_layout`, I counting C_in.
    """
    op = f"{OP}_backward_weight"
    get_op(WGRAD_NAME)
    operands(op, grad=grad, data=data)
    a = _forward_attrs(
        op, strides, padding, dilation, groups, grad_layout, data_layout, kernel_layout, out_dtype
    )
    a = replace(a, kernel_size=per_dimension(op, "kernel_size", kernel_size, 2))
    _check_here(op, a, typed_weight, (data, grad))
    return wgrad_call(data, grad, a)


def _forward_attrs(
    op: str, strides: Any, padding: Any, dilation: Any, groups: Any,
    grad_layout: Any, data_layout: Any, kernel_layout: Any, out_dtype: Any,
) -> ConvAttrs:  # fmt: skip
    """A transposed convolution's attributes in the forward convolution's terms."""
    kernel = layout(op, "kernel_layout", kernel_layout)
    if not is_permutation(kernel, KERNEL_TRANSPOSED):  # told before I and O change places
        raise ValueError(
            f"{op}: kernel_layout must be a permutation of {KERNEL_TRANSPOSED}, got {kernel!r}"
        )
    return ConvAttrs(
        strides=per_dimension(op, "strides", strides, 2),
        padding=ends(op, padding, 2),
        dilation=per_dimension(op, "dilation", dilation, 2),
        groups=positive_groups(op, groups),
        data_layout=layout(op, "grad_layout", grad_layout),
        kernel_layout=swap_io(kernel),
        grad_layout=layout(op, "data_layout", data_layout),
        out_dtype=dtype_name(op, out_dtype),
    )


_OWN_WORDS = {
    "data": "grad", "grad": "data", "data_layout": "grad_layout", "grad_layout": "data_layout",
}  # fmt: skip
"""The forward convolution's words -> a transposed one's: its gradient is the forward data."""


def _check_here(
    op: str,
    a: ConvAttrs,
    check: Callable[[Relation, Sequence[relax.Expr]], object],
    args: tuple[relax.Expr, ...],
) -> None:
    """The rules of the call that is made, under this function's name and in its words: the call's
    own relation has those of the forward convolution.  An operand that has no type yet is left
    to that."""
    if all(isinstance(arg.ty, relax.TensorType) for arg in args):
        rel = Relation(op, a, names=_OWN_WORDS)
        rel.check_attrs()
        check(rel, args)
        rel.result_dtype(args)
        rel.result_vdevice(args)


def _check(rel: Relation, args: Sequence[relax.Expr]) -> None:
    """Channels and output sizes; the weight is in the forward convolution's order (K, C/groups)."""
    a = rel.attrs
    data = rel.tensor("data", args[0], a.grad_layout, a.activation)
    weight = rel.tensor("weight", args[1], a.kernel_layout, a.kernel)
    if weight is not None:
        rel.divides(a.groups, "the weight's input channels I", weight[0])
    if data is not None:
        rel.divides(a.groups, "data's channels", data[1])
    if data is None or weight is None:
        return
    rel.same(
        "data's channels must be the weight's input channels I",
        "data channels", data[1], "weight I", weight[0],
    )  # fmt: skip
    assert a.output_padding is not None
    for axis, name in enumerate(("depth", "height", "width")[-a.rank :]):
        size, kernel, pad = data[2 + axis], weight[2 + axis], a.padding[axis :: a.rank]
        stride, dilation, extra = a.strides[axis], a.dilation[axis], a.output_padding[axis]
        made = transposed_size(size, sum(pad), kernel, stride, dilation, extra)
        why = (
            f"input size {size}, kernel {kernel}, padding {sum(pad)} in all, stride {stride},"
            f" dilation {dilation}, output padding {extra}"
        )
        rel.positive(f"output {name}", made, why)


DEFS = {
    rank: define(
        f"conv{rank}d_transpose", ConvKind.DGRAD, partial(read_conv_transpose, rank=rank),
        _check, f"{rank}-D transposed convolution (a dgrad); upstream's op",
    ) for rank in RANKS
}  # fmt: skip
