"""Concatenations of more tensors than a kernel has arguments for, as several."""

from __future__ import annotations

from ..ast import Call, Expr, Function, Op, Tuple
from ..make import call
from ..records.annotation import STOP
from ..rewrite import rewrite
from ..types import TensorType, Type
from .user_hooks import attributes, kernels


def split_args(function: Function, most: int) -> Function:
    """The function with no `concatenate` of more than so many arguments, result and sizes counted.

    With 0 there is no bound.  Needs types.

    Raises ValueError for a bound that not even two tensors keep.
    """
    if most == 0:
        return function

    def change(old: Expr, node: Expr) -> Expr:
        if not (isinstance(node, Call) and node.op == Op("concatenate")):
            return node
        fields, joined = node.args[0], old.checked_type
        if not isinstance(fields, Tuple):
            return node
        assert isinstance(old, Call)
        inner = old.args[0]
        assert isinstance(inner, Tuple)
        costs = [_arguments(field.checked_type) for field in inner.fields]
        limit = most - 1 - _strides(joined)
        if sum(costs) < limit:
            return node
        own = _arguments(joined)
        if limit < own + max(costs):
            raise ValueError(
                f"SplitArgs: a kernel of {most} arguments can't join two of {max(costs)} each"
            )
        axis = attributes(node, "concatenate").axis
        parts: list[Expr] = []
        used = 0
        for field, cost in zip(fields.fields, costs, strict=True):
            if used + cost > limit:
                parts, used = [_joined(parts, axis)], own
            parts.append(field)
            used += cost
        return _joined(parts, axis)

    out = rewrite(function, change, dict(kernels(function)))
    assert isinstance(out, Function)
    return out


def _joined(parts: list[Expr], axis: int) -> Expr:
    return call("concatenate", call(STOP, Tuple(tuple(parts))), axis=axis)


def _strides(ty: Type | None) -> int:
    """The sizes that a tensor of unknown ones has as arguments."""
    assert isinstance(ty, TensorType)
    return 0 if all(isinstance(d, int) for d in ty.shape) else len(ty.shape)


def _arguments(ty: Type | None) -> int:
    """The tensor itself, its unknown sizes, and then its strides."""
    assert isinstance(ty, TensorType)
    return 1 + sum(not isinstance(d, int) for d in ty.shape) + _strides(ty)
