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
from ..attrs import ConvAttrs, as_int, dtype_name, each, ends, layout, rank_of, read_conv2d
from ..conditions import Conditions
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
    a = forward_attrs(
        OP, strides, padding, dilation, groups, data_layout, kernel_layout, out_layout, out_dtype
    )
    operands(OP, data=data, weight=weight)
    return fprop_call(data, weight, a)


def forward_attrs(
    op: str, strides: Any, padding: Any, dilation: Any, groups: Any,
    data_layout: Any, kernel_layout: Any, out_layout: Any, out_dtype: Any,
) -> ConvAttrs:  # fmt: skip
    """The attributes of a forward convolution from its constructor's arguments."""
    rank = rank_of(op)
    return ConvAttrs(
        strides=each(op, "strides", strides, rank),
        padding=ends(op, padding, rank),
        dilation=each(op, "dilation", dilation, rank),
        groups=positive_groups(op, groups),
        data_layout=layout(op, "data_layout", data_layout),
        kernel_layout=layout(op, "kernel_layout", kernel_layout),
        grad_layout=layout(op, "out_layout", out_layout or data_layout),
        out_dtype=dtype_name(op, out_dtype),
    )


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


def is_family(call: relax.Call) -> bool:
    """Whether a call of an op of upstream's is one the family's rules cover: float, unblocked."""
    return is_unblocked(call) and all(is_float(x) for x in call.args[:2])


def is_unblocked(call: relax.Call) -> bool:
    a = call.attrs
    return all(str(v).isalpha() for v in (a.data_layout, a.kernel_layout, a.out_layout))


def before_upstreams(
    op: str,
    read: Callable[[relax.Call], ConvAttrs],
    check: Callable[[Relation, Sequence[relax.Expr]], None],
) -> opdef.Rule:
    """The type rule of upstream's convolution `op`: the family's rules, then upstream's relation.

    check : of the relation, whose attributes are right, and the operands.
    """

    def infer_type(upstream: Callable[..., Any]) -> Callable[..., Any]:
        def rule(call: relax.Call, ctx: relax.BlockBuilder) -> relax.TensorType:
            rel = Relation(op, read(call))
            rel.arity(call, ("data", "weight"))
            if is_family(call):
                rel.check_attrs()
                check(rel, call.args)
                rel.result_dtype(call.args)
                rel.result_vdevice(call.args)
            return upstream(call, ctx)

        return rule

    return infer_type


def run_sizes(
    op: str,
    read: Callable[[relax.Call], ConvAttrs],
    check: Callable[[Relation, Sequence[relax.Expr]], object],
) -> Callable[[relax.Call, Conditions], None]:
    """The rules of sizes of upstream's convolution `op`, for what is left to the run; of integers
    too, whose kernels are upstream's."""

    def rule(call: relax.Call, run: Conditions) -> None:
        if is_unblocked(call):
            check(Relation(op, read(call), run), call.args)

    return rule


def define(op: str, read: Callable[[relax.Call], ConvAttrs]) -> opdef.OpDef:
    """The record of upstream's convolution `op`."""

    def check(rel: Relation, args: Sequence[relax.Expr]) -> None:
        a = rel.attrs
        data = rel.tensor("data", args[0], a.data_layout, a.activation)
        weight = rel.tensor("weight", args[1], a.kernel_layout, a.kernel)
        rel.check_conv(data, weight, None)

    def gradient(upstream: Callable[..., Any]) -> Callable[..., Any]:
        ours = gradient_rule(op, ConvKind.FPROP, read)

        def rule(var: Any, call: relax.Call, cotangent: relax.Var, ctx: Any) -> list[relax.Expr]:
            a = read(call)
            for value, canonical in (
                (a.data_layout, a.activation),
                (a.kernel_layout, a.kernel),
                (a.grad_layout, a.activation),
            ):
                if not is_permutation(value, canonical):
                    raise ValueError(f"{op}: no gradient for layout {value!r}: {PACKED}")
            return ours(var, call, cotangent, ctx)

        return rule

    return opdef.OpDef(
        name=f"relax.nn.{op}",
        summary=f"{rank_of(op)}-D convolution (fprop); upstream's op",
        kind=ConvKind.FPROP,
        read_attrs=read,
        legalizer=opdef.FAMILY_LEGALIZER,
        sizes=run_sizes(op, read, check),
        rules={opdef.INFER_TYPE: before_upstreams(op, read, check), opdef.GRADIENT: gradient},
        missing=dict.fromkeys(UPSTREAMS, "upstream's"),
    )


UPSTREAMS = (opdef.PURITY, opdef.MIXED_POLICY, opdef.MIXED_INFER, opdef.INFER_LAYOUT)
DEF = define(OP, read_conv2d)
