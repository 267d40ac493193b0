"""`…_like` operators with the shape that they take, identities taken out, and `simplify_rules`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...ops.elementwise import BINARY, by
from ..ast import Call, Constant, Expr, Function, MetaAttrs, Op
from ..make import call
from ..records import lookup
from ..rewrite import rewrite, with_children
from ..types import TensorType
from .simplify_rules import RULES, Known
from .user_hooks import filling, kernels


def simplify_expr(function: Function) -> Function:
    """The function simplified, operands before users.  Needs types."""
    known = Known()

    def change(old: Expr, node: Expr) -> Expr:
        ty = old.checked_type
        if ty is not None:
            known.types[node] = ty
        while isinstance(node, Call) and isinstance(node.op, Op) and isinstance(ty, TensorType):
            out = _simpler(node, node.op.name, ty, known)
            if out is None:
                break
            known.types[out] = ty
            node = settled(out)
            known.types[node] = ty
        return node

    def settled(made: Expr) -> Expr:
        """What a rule made, with its new operands simplified too."""
        if not isinstance(made, Call):
            return made
        new: dict[Expr, Expr] = {made.op: made.op}
        for arg in made.args:
            fresh = isinstance(arg, Call) and arg not in known.types
            new[arg] = change(replace(arg, checked_type=known.of(arg)), arg) if fresh else arg
        return with_children(made, new)

    out = rewrite(function, change, {n: n for n in kernels(function)})
    assert isinstance(out, Function)
    return out


def _simpler(node: Call, name: str, ty: TensorType, known: Known) -> Expr | None:
    shape = [size for size in ty.shape if isinstance(size, int)]
    concretize = _CONCRETE.get(name)
    if concretize is not None and len(shape) == len(ty.shape):
        return concretize(node.args, shape, ty.dtype)
    kept = _without_identity(node, ty, known)
    if kept is not node:
        return kept
    for rule in RULES.get(name, ()):
        out = rule(node, known)
        if out is not None:
            return out
    return None


def _collapse_sum_to(args: tuple[Expr, ...], shape: list[int], dtype: str) -> Expr:
    """Relay keeps this operator's attributes in the metadata, and the shape as data too."""
    meta = lookup("collapse_sum_to").meta
    assert meta is not None
    attrs = MetaAttrs(meta, {"shape": tuple(shape), "dtype": ""})
    return Call(Op("collapse_sum_to"), (args[0], Constant(np.array(shape, "int32"))), attrs)


_CONCRETE: dict[str, Callable[[tuple[Expr, ...], list[int], str], Expr]] = {
    "zeros_like": lambda args, shape, dtype: call("zeros", shape=shape, dtype=dtype),
    "ones_like": lambda args, shape, dtype: call("ones", shape=shape, dtype=dtype),
    "full_like": lambda args, shape, dtype: call("full", args[1], shape=shape, dtype=dtype),
    "reshape_like": lambda args, shape, dtype: call("reshape", args[0], newshape=shape),
    "broadcast_to_like": lambda args, shape, dtype: call("broadcast_to", args[0], shape=shape),
    "collapse_sum_like": _collapse_sum_to,
}

_RECORDS = by("relay", BINARY)


def _without_identity(node: Call, ty: TensorType, known: Known) -> Expr:
    assert isinstance(node.op, Op)
    record = _RECORDS.get(node.op.name)
    if record is None or record.neutral is None:
        return node
    x, y = node.args
    for kept, other, allowed in ((x, y, True), (y, x, record.commutes)):
        if allowed and _is_filled(other, record.neutral) and known.of(kept) == ty:
            return kept
    return node


def _is_filled(node: Expr, value: Any) -> bool:
    """Whether a node is zeros or ones by its form, or a scalar constant of that value."""
    if isinstance(node, Constant):
        return node.data.ndim == 0 and bool(node.data == value)
    return filling(node) == value
