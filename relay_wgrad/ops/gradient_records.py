"""What the records of the family's own operators share: the two gradients, of each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from .. import opdef
from ..attrs import ConvAttrs, dtype_name, read_dict_attrs
from ..layout_rules.stock import conv_rule
from ..problem import ConvKind
from ..relation import Relation
from .algebra import gradient_rule


def gradient_record(
    op: str,
    name: str,
    kind: ConvKind,
    keys: tuple[str, ...],
    *,
    summary: str,
    arguments: tuple[tuple[str, str, str], ...],
    constructor: opdef.Rule,
    typed: Callable[[Relation, Sequence[relax.Expr]], relax.TensorType],
    made: Callable[..., relax.Call],
) -> opdef.OpDef:
    """The record of `relax.nn.{op}`, whose attributes are `keys`.

    typed : the result's type, of the relation whose attributes and number of arguments are right.
    made : a call of the operator's arguments and attributes.
    """

    def read(call: relax.Call) -> ConvAttrs:
        return read_dict_attrs(call, op, keys)

    def infer_type(call: relax.Call, ctx: relax.BlockBuilder) -> relax.TensorType:
        rel = Relation(op, read(call))
        rel.arity(call, tuple(argument for argument, _, _ in arguments))
        rel.check_attrs()
        return typed(rel, call.args)

    def infer_mixed_precision(call: relax.Call, out_dtype: Any) -> relax.Call:
        return made(*call.args, replace(read(call), out_dtype=dtype_name(op, str(out_dtype))))

    return opdef.OpDef(
        name=name,
        summary=summary,
        arguments=arguments,
        kind=kind,
        read_attrs=read,
        constructor=constructor,
        legalizer=opdef.FAMILY_LEGALIZER,
        sizes=lambda call, run: typed(Relation(op, read(call), run), call.args),
        rules={
            opdef.INFER_TYPE: infer_type,
            opdef.GRADIENT: gradient_rule(op, kind, read),
            opdef.INFER_LAYOUT: conv_rule(name),
            opdef.PURITY: True,
            opdef.MIXED_POLICY: opdef.MIXED_ALWAYS,
            opdef.MIXED_INFER: infer_mixed_precision,
        },
    )
