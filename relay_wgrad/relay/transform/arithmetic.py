"""Rewrites of single operators: other arithmetic, casts that are not shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...dtypes import numpy_dtype
from ..ast import Call, Constant, Expr, Function, Op
from ..op.registration import get_attr
from ..records.facts import OpPattern
from ..rewrite import rewrite
from ..types import TensorType
from .user_hooks import filling, kernels


def div_to_mul(function: Function) -> Function:
    """The function with products by reciprocals for divisions by constants of floats.

    A constant with a zero, or one whose reciprocals overflow or are subnormal, stays.
    """

    def change(old: Expr, node: Expr) -> Expr:
        if not (isinstance(node, Call) and node.op == Op("divide")):
            return node
        divisor = node.args[1]
        if not isinstance(divisor, Constant) or divisor.data.dtype.kind != "f":
            return node
        wide = np.asarray(divisor.data, "float64")
        tiny = np.finfo(divisor.data.dtype).tiny
        with np.errstate(all="ignore"):
            inverse = (1 / wide).astype(divisor.data.dtype)
        if not np.isfinite(inverse).all() or (np.abs(inverse) < tiny).any():
            return node
        return replace(node, op=Op("multiply"), args=(node.args[0], Constant(inverse)))

    return _rewritten(function, change)


def canonicalize_cast(function: Function) -> Function:
    """The function with a cast to wider numbers of its own for each operator that takes it.

    So each can be fused with its cast, and the narrow tensor is what is kept.  Needs types.
    """
    seen: Counter[Expr] = Counter()

    def change(old: Expr, node: Expr) -> Expr:
        if not (isinstance(old, Call) and isinstance(old.op, Op) and isinstance(node, Call)):
            return node
        kind = get_attr(old.op.name, "TOpPattern")
        if kind is None or kind > OpPattern.BROADCAST:
            return node
        args = []
        for before, arg in zip(old.args, node.args, strict=True):
            if _widens(before):
                seen[before] += 1
                arg = replace(arg) if seen[before] > 1 else arg
            args.append(arg)
        same = all(a is b for a, b in zip(args, node.args, strict=True))
        return node if same else replace(node, args=tuple(args))

    return _rewritten(function, change)


def _widens(node: Expr) -> bool:
    if not (isinstance(node, Call) and node.op == Op("cast")):
        return False
    source, made = node.args[0].checked_type, node.checked_type
    if not (isinstance(source, TensorType) and isinstance(made, TensorType)):
        return False
    return numpy_dtype(source.dtype).itemsize < numpy_dtype(made.dtype).itemsize


# ---- gradients' zeros and ones -------------------------------------------------------------------


def lazy_gradient_init(function: Function) -> Function:
    """The function without sums with `zeros` and products with `ones`.

    Relay makes a type of its own for tensors that are not filled until they are needed; here the
    operators that would need them are gone.  Needs types.
    """

    def change(old: Expr, node: Expr) -> Expr:
        if not (isinstance(node, Call) and isinstance(node.op, Op) and isinstance(old, Call)):
            return node
        neutral = {"add": 0, "multiply": 1}.get(node.op.name)
        if neutral is None:
            return node
        for this, other in ((0, 1), (1, 0)):
            kept = old.args[other].checked_type
            if filling(old.args[this]) == neutral and kept == old.checked_type:
                return node.args[other]
        return node

    return _rewritten(function, change)


def _rewritten(function: Function, change: Callable[[Expr, Expr], Expr]) -> Function:
    out = rewrite(function, change, dict(kernels(function)))
    assert isinstance(out, Function)
    return out
