"""Operators in terms of simpler ones."""

from __future__ import annotations

from ..ast import Call, Expr, Function, Op
from ..make import call
from ..records import lookup
from ..rewrite import rewrite
from ..types import TensorType
from .simplify_inference import broadcast_along


def canonicalize_ops(function: Function) -> Function:
    """The function with `nn.bias_add` as an addition.  Needs types."""

    def change(old: Expr, node: Expr) -> Expr:
        if not (isinstance(node, Call) and node.op == Op("nn.bias_add")):
            return node
        assert isinstance(old, Call)
        ty = old.args[0].checked_type
        assert isinstance(ty, TensorType)
        axis = lookup("nn.bias_add").read(node.attrs)["axis"] % len(ty.shape)
        data, bias = node.args
        return call("add", data, broadcast_along(bias, axis, len(ty.shape)))

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out
