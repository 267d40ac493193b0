"""`relax.nn.conv2d(data, weight)`: fprop.  Upstream's op; type relation and gradient are ours.

    y[n, k, p, q] = sum over c, r, s of
        data[n, g*C/groups + c, p*stride_h + r*dilation_h - top, …] * weight[k, c, r, s]

Upstream's type inference accepts dilation 0, negative padding and outputs of negative size; its
gradient fails or has the wrong shape with dilation, other layouts than NCHW/OIHW, and symbolic
sizes.  Here its relation is asked only after the rules of the family hold.

`relax.nn.conv3d` is the same with a depth, `relax.nn.conv1d`, which has no gradient upstream, with
one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from tvm import relax

from .. import opdef
from ..attrs import ConvAttrs, as_int, dtype_name, ends, layout, per_dimension, rank_of, read_conv
from ..conditions import Conditions
from ..layouts import ACTIVATIONS, KERNELS
from ..problem import DTYPE_BYTES, ConvKind
from ..ranks import OWN, RANKS, for_rank
from ..relation import Relation
from . import size_rules
from .algebra import fprop_call, gradient_rule, operands

Ints = int | Sequence[int]


class Conv(Protocol):
    """The constructor of a convolution."""

    def __call__(
        self, data: relax.Expr, weight: relax.Expr, strides: Ints = ..., padding: Ints = ...,
        dilation: Ints = ..., groups: int = 1, data_layout: str = ..., kernel_layout: str = ...,
        out_layout: str | None = None, out_dtype: str | None = None,
    ) -> relax.Expr: ...  # fmt: skip


def _conv(rank: int) -> Conv:
    op, ones, zeros = f"conv{rank}d", (1,) * rank, (0,) * rank

    def construct(
        data: relax.Expr,
        weight: relax.Expr,
        strides: int | Sequence[int] = ones,
        padding: int | Sequence[int] = zeros,
        dilation: int | Sequence[int] = ones,
        groups: int = 1,
        data_layout: str = ACTIVATIONS[rank],
        kernel_layout: str = KERNELS[rank],
        out_layout: str | None = None,
        out_dtype: str | None = None,
    ) -> relax.Expr:
        """Upstream's `relax.op.nn.{name}`, with its attributes checked in Python first.

        Parameters
        ----------
        data : tensor of shape (N, C, {pixels}) in `data_layout`.
        weight : tensor of shape (K, C/groups, {taps}) in `kernel_layout`.
        padding : ({ends}), or one for each dimension, or one int.
        out_layout : the result's layout, by default `data_layout`.
        out_dtype : the result's dtype, by default the operands'.

        Returns
        -------
        relax.Expr : a call whose result has the shape (N, K, {out}) in `out_layout`, with
            {made} = floor(({size} + {first} + {last} - dilation*({tap}-1) - 1) / stride) + 1.

        Raises
        ------
        TypeError, ValueError : naming attribute and value.
        """
        a = ConvAttrs(
            strides=per_dimension(op, "strides", strides, rank),
            padding=ends(op, padding, rank),
            dilation=per_dimension(op, "dilation", dilation, rank),
            groups=positive_groups(op, groups),
            data_layout=layout(op, "data_layout", data_layout),
            kernel_layout=layout(op, "kernel_layout", kernel_layout),
            grad_layout=layout(op, "out_layout", out_layout or data_layout),
            out_dtype=dtype_name(op, out_dtype),
        )
        operands(op, data=data, weight=weight)
        return fprop_call(data, weight, a)

    return for_rank(construct, op, rank)


conv2d, conv3d = map(_conv, OWN)


def positive_groups(op: str, groups: Any) -> int:
    """Upstream's constructors abort on groups < 1 before any type relation is asked."""
    value = as_int(op, "groups", groups)
    if value < 1:
        raise ValueError(f"{op}: groups must be at least 1, got groups={value}")
    return value


def _is_float(expr: relax.Expr) -> bool:
    """Whether the operand's dtype is one of the family's, or not known to be another."""
    dtype = getattr(expr.ty, "dtype", None)
    return dtype is None or str(dtype) in DTYPE_BYTES


def is_family(call: relax.Call) -> bool:
    """Whether a call of an op of upstream's is one the family's rules cover: float, unblocked."""
    return _is_unblocked(call) and all(_is_float(x) for x in call.args[:2])


def _is_unblocked(call: relax.Call) -> bool:
    a = call.attrs
    return all(str(v).isalpha() for v in (a.data_layout, a.kernel_layout, a.out_layout))


def _before_upstreams(
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


def _run_sizes(
    op: str,
    read: Callable[[relax.Call], ConvAttrs],
    check: Callable[[Relation, Sequence[relax.Expr]], object],
) -> Callable[[relax.Call, Conditions], None]:
    """The rules of sizes of upstream's convolution `op`, for what is left to the run; of integers
    too, whose kernels are upstream's."""

    def rule(call: relax.Call, run: Conditions) -> None:
        if _is_unblocked(call):
            check(Relation(op, read(call), run), call.args)

    return rule


def define(
    op: str,
    kind: ConvKind,
    read: Callable[[relax.Call], ConvAttrs],
    check: Callable[[Relation, Sequence[relax.Expr]], None],
    summary: str,
) -> opdef.OpDef:
    """The record of upstream's convolution, or transposed convolution, `op`."""
    name, gradient = f"relax.nn.{op}", gradient_rule(op, kind, read)
    legalizer, sizes = "legalize.lines:rule", size_rules.rule(name)
    if rank_of(op) > 1:
        legalizer, sizes = opdef.FAMILY_LEGALIZER, _run_sizes(op, read, check)
    return opdef.OpDef(
        name=name,
        summary=summary,
        kind=kind,
        read_attrs=read,
        legalizer=legalizer,
        sizes=sizes,
        rules={
            opdef.GRADIENT: lambda upstream: gradient,
            opdef.INFER_TYPE: _before_upstreams(op, read, check),
        },
        missing=dict.fromkeys(_UPSTREAMS, "upstream's"),
    )


def check_operands(rel: Relation, args: Sequence[relax.Expr]) -> None:
    """A convolution's rules of (data, weight)."""
    a = rel.attrs
    data = rel.tensor("data", args[0], a.data_layout, a.activation)
    weight = rel.tensor("weight", args[1], a.kernel_layout, a.kernel)
    rel.check_conv(data, weight, None)


_UPSTREAMS = (opdef.PURITY, opdef.MIXED_POLICY, opdef.MIXED_INFER, opdef.INFER_LAYOUT)
DEFS = {
    rank: define(
        f"conv{rank}d", ConvKind.FPROP, partial(read_conv, rank=rank), check_operands,
        f"{rank}-D convolution (fprop); upstream's op",
    ) for rank in RANKS
}  # fmt: skip
