"""What the gradient rules share: operators as functions, types, constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from ...dtypes import HALVES
from ..ast import Call, Constant, Expr, Op
from ..make import call as call
from ..records import lookup, show
from ..text.literals import ARRAY_DTYPES
from ..types import TensorType, TupleType, Type

# (original call, gradient of its result) -> the gradient of each argument
Rule = Callable[[Call, Expr], Sequence[Expr]]

exp, log, cos, sin, cosh, sinh, sqrt = (
    partial(call, name) for name in ("exp", "log", "cos", "sin", "cosh", "sinh", "sqrt")
)
zeros_like, ones_like, less, where, power = (
    partial(call, name) for name in ("zeros_like", "ones_like", "less", "where", "power")
)
collapse_sum_like, broadcast_to_like, reshape_like, cast_like = (
    partial(call, name)
    for name in ("collapse_sum_like", "broadcast_to_like", "reshape_like", "cast_like")
)


def transpose(x: Expr, axes: Sequence[int] | None = None) -> Call:
    """`x` with its axes in another order; reversed without one."""
    return call("transpose", x, axes=axes)


def reshape(x: Expr, shape: Sequence[int]) -> Call:
    """`x` in another shape."""
    return call("reshape", x, newshape=shape)


def total(x: Expr, axes: Sequence[int], keepdims: bool = False) -> Call:
    """The sum over axes."""
    return call("sum", x, axis=axes, keepdims=keepdims)


def type_of(x: Expr) -> TensorType:
    """The type of a tensor that has been inferred."""
    assert isinstance(x.checked_type, TensorType), x
    return x.checked_type


def fields_of(x: Expr) -> list[TensorType]:
    """The types of a tuple of tensors that have been inferred."""
    assert isinstance(x.checked_type, TupleType), x
    out = []
    for ty in x.checked_type.fields:
        assert isinstance(ty, TensorType)
        out.append(ty)
    return out


def typed(name: str, *args: Expr, **attrs: Any) -> Call:
    """A call of operands that have types, with its own."""
    made = call(name, *args, **attrs)
    return replace(made, checked_type=lookup(name).infer([type_of(x) for x in args], made.attrs))


def constant(value: Any, dtype: str) -> Constant:
    """A constant of a dtype."""
    return Constant(np.asarray(value, ARRAY_DTYPES[dtype]))


def scalar(value: float, like: Expr) -> Constant:
    """A constant without axes, of a tensor's dtype."""
    return constant(value, type_of(like).dtype)


def in_float32(rule: Rule) -> Rule:
    """Of several operations: half precision is widened before the first and rounded after the last.

    In between there are counts and sums of weights, which need not be float16 numbers, and their
    inverses, which need not be normal ones.  The call that the rule gets is float32's too: where
    the rule reads its result, that is computed anew and not rounded.
    """

    def widened(orig: Call, grad: Expr) -> list[Expr]:
        halves = [is_half(x.checked_type) for x in orig.args]
        if not any(halves):
            return list(rule(orig, grad))
        args = tuple(wide(x) if half else x for x, half in zip(orig.args, halves, strict=True))
        ty = replace(type_of(orig), dtype="float32")
        made = rule(replace(orig, args=args, checked_type=ty), call("cast", grad, dtype="float32"))
        return [
            call("cast", part, dtype=type_of(x).dtype) if half else part
            for part, x, half in zip(made, orig.args, halves, strict=True)
        ]

    return widened


def is_half(ty: Type | None) -> bool:
    """Whether it is a half-precision tensor's."""
    return isinstance(ty, TensorType) and ty.dtype in HALVES


def wide(x: Expr) -> Call:
    """A tensor in float32, with its type."""
    ty = replace(type_of(x), dtype="float32")
    return replace(call("cast", x, dtype="float32"), checked_type=ty)


def refuse(orig: Call, why: str) -> NoReturn:
    """No gradient for this call."""
    assert isinstance(orig.op, Op)
    raise ValueError(f"the gradient of {orig.op.name}: {why}")


def sizes(orig: Call, x: Expr) -> list[int]:
    """A tensor's sizes, which must all be known."""
    ty = type_of(x)
    out = [size for size in ty.shape if isinstance(size, int)]
    if len(out) != len(ty.shape):
        refuse(orig, f"needs known sizes, got {show(ty)}")
    return out


def zeros_for_all(orig: Call, grad: Expr) -> list[Expr]:
    """No argument changes the result by a small change."""
    return [zeros_like(arg) for arg in orig.args]
