"""Gradients of convolutions and pools of one dimension: those of two with a height of 1."""

from __future__ import annotations

from dataclasses import replace

from ..ast import Call, Expr, Op
from ..ops import lookup
from ..ops.one_dimension import TWO, axes, in_two
from . import conv, pool
from .common import Rule, attributes, call, type_of

_RULES = {**conv.RULES, **pool.RULES}


def _rule(orig: Call, grad: Expr) -> list[Expr]:
    assert isinstance(orig.op, Op)
    a = attributes(orig)
    *places, out = axes(a)
    args = [_wide(x, axis) for x, axis in zip(orig.args, places, strict=True)]
    name, attrs = TWO[orig.op.name], in_two(a)
    made = lookup(name).infer([type_of(x) for x in args], attrs)
    wide = replace(call(name, *args, **attrs), checked_type=made)
    try:
        parts = _RULES[name](wide, _wide(grad, out))
    except ValueError as error:
        raise ValueError(str(error).replace(name, orig.op.name)) from error
    return [call("squeeze", g, axis=[axis]) for g, axis in zip(parts, places, strict=True)]


def _wide(x: Expr, axis: int) -> Call:
    ty = type_of(x)
    ty = replace(ty, shape=(*ty.shape[:axis], 1, *ty.shape[axis:]))
    return replace(call("expand_dims", x, axis=axis), checked_type=ty)


RULES: dict[str, Rule] = dict.fromkeys(TWO, _rule)
