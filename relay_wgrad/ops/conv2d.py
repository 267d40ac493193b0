"""`relax.nn.conv2d(data, weight)`: fprop.  Upstream's op; type relation and gradient are ours.

    y[n, k, p, q] = sum over c, r, s of
        data[n, g*C/groups + c, p*stride_h + r*dilation_h - top, …] * weight[k, c, r, s]

Upstream's type inference accepts dilation 0, negative padding and outputs of negative size; its
gradient fails or has the wrong shape with dilation, other layouts than NCHW/OIHW, and symbolic
sizes.  Here its relation is asked only after the rules of the family hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from .. import opdef
from ..attrs import ConvAttrs, as_int, dtype_name, layout, padding4, pair, read_conv2d
from ..layouts import ACTIVATION, KERNEL, is_permutation
from ..problem import DTYPE_BYTES, ConvKind
from ..relation import Relation
from .algebra import fprop_call, gradient_rule, operands

OP = "conv2d"
NAME = "relax.nn.conv2d"
PACKED = "blocked layouts are upstream's: no rule of the family applies to them"


def conv2d(
    data: relax.Expr,
    weight: relax.Expr,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    groups: int = 1,
    data_layout: str = ACTIVATION,
    kernel_layout: str = KERNEL,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> relax.Expr:
    """Upstream's `relax.op.nn.conv2d`, with its attributes checked in Python first.

    Parameters
    ----------
    data : tensor of shape (N, C, H, W) in `data_layout`.
    weight : tensor of shape (K, C/groups, R, S) in `kernel_layout`.
    padding : (top, left, bottom, right), or (vertical, horizontal), or one int.
    out_layout : the result's layout, by default `data_layout`.
    out_dtype : the result's dtype, by default the operands'.

    Returns
    -------
    relax.Expr : a call whose result has the shape (N, K, P, Q) in `out_layout`, with
        P = floor((H + top + bottom - dilation*(R-1) - 1) / stride) + 1.

    Raises
    ------
    TypeError, ValueError : naming attribute and value.
    """
    operands(OP, data=data, weight=weight)
    a = ConvAttrs(
        strides=pair(OP, "strides", strides),
        padding=padding4(OP, padding),
        dilation=pair(OP, "dilation", dilation),
        groups=positive_groups(OP, groups),
        data_layout=layout(OP, "data_layout", data_layout),
        kernel_layout=layout(OP, "kernel_layout", kernel_layout),
        grad_layout=layout(OP, "out_layout", out_layout or data_layout),
        out_dtype=dtype_name(OP, out_dtype),
    )
    return fprop_call(data, weight, a)


def positive_groups(op: str, groups: Any) -> int:
    """Upstream's constructors abort on groups < 1 before any type relation is asked."""
    value = as_int(op, "groups", groups)
    if value < 1:
        raise ValueError(f"{op}: groups must be at least 1, got groups={value}")
    return value


def is_float(expr: relax.Expr) -> bool:
    """Whether the operand's dtype is one of the family's, or not known to be another."""
    dtype = getattr(expr.ty, "dtype", None)
    return dtype is None or str(dtype) in DTYPE_BYTES


def is_family(call: relax.Call, *layouts: str) -> bool:
    """Whether a call of upstream's op is one the family's rules cover: float, unblocked."""
    return all(len(str(v)) == 4 and str(v).isalpha() for v in layouts) and all(
        is_float(x) for x in call.args[:2]
    )


def infer_type(upstream: Callable[..., Any]) -> Callable[..., Any]:
    """The family's rules first, then upstream's relation."""

    def rule(call: relax.Call, ctx: relax.BlockBuilder) -> relax.TensorType:
        a = call.attrs
        rel = Relation(OP, read_conv2d(call))
        rel.arity(call, ("data", "weight"))
        if is_family(call, a.data_layout, a.kernel_layout, a.out_layout):
            rel.check_attrs()
            data = rel.tensor("data", call.args[0], rel.attrs.data_layout, ACTIVATION)
            weight = rel.tensor("weight", call.args[1], rel.attrs.kernel_layout, KERNEL)
            rel.check_conv(data, weight, None)
            rel.result_dtype(call.args)
            rel.result_vdevice(call.args)
        return upstream(call, ctx)

    return rule


def gradient(upstream: Callable[..., Any]) -> Callable[..., Any]:
    ours = gradient_rule(OP, ConvKind.FPROP, read_conv2d)

    def rule(var: relax.Var, call: relax.Call, cotangent: relax.Var, ctx: Any) -> list[relax.Expr]:
        a = call.attrs
        layouts = (
            (a.data_layout, ACTIVATION),
            (a.kernel_layout, KERNEL),
            (a.out_layout, ACTIVATION),
        )
        for value, canonical in layouts:
            if not is_permutation(str(value), canonical):
                raise ValueError(f"{OP}: no gradient for layout {value!r}: {PACKED}")
        return ours(var, call, cotangent, ctx)

    return rule


DEF = opdef.OpDef(
    name=NAME,
    summary="2-D convolution (fprop); upstream's op",
    kind=ConvKind.FPROP,
    read_attrs=read_conv2d,
    legalizer=opdef.FAMILY_LEGALIZER,
    rules={opdef.INFER_TYPE: infer_type, opdef.GRADIENT: gradient},
    missing={
        opdef.PURITY: "upstream's",
        opdef.MIXED_POLICY: "upstream's",
        opdef.MIXED_INFER: "upstream's",
        opdef.INFER_LAYOUT: "upstream's",
    },
)
