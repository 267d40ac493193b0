"""Operations on elements: known numbers are computed here, and broadcasts stay broadcasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tvm import relax

from ...dtypes import numpy_dtype
from ...ir import compared
from ..context import FLOATS, Context, shape_of
from .reading import word
from .steps import Builder, Step, cast, number
from .tensors import Tensor, of_array, reshaped

op = relax.op
_FOLDED = 1 << 22  # elements: a known value of more is computed by the program


class Row(NamedTuple):
    """How an operation is written, of the operands' expressions, and how NumPy computes it.

    dtypes : "f" for floating-point operands only, "b" and "i" too where they may be those.
    """

    made: Callable[..., Any]
    folded: Callable[..., Any] | None = None
    dtypes: str = "fi"


def _one(x: Any) -> Any:
    return relax.const(np.asarray(1, numpy_dtype(str(x.ty.dtype))), str(x.ty.dtype))


def _of(value: float, x: Any) -> Any:
    return relax.const(np.asarray(value, numpy_dtype(str(x.ty.dtype))), str(x.ty.dtype))


def _expm1(x: Any) -> Any:
    """tanh(x / 2) (exp(x) + 1): no digits are lost near 0."""
    return op.multiply(op.tanh(op.multiply(x, _of(0.5, x))), op.add(op.exp(x), _one(x)))


def _log1p(x: Any) -> Any:
    """log(y) x / (y - 1) for y = 1 + x as it was rounded, near 0; there y may be 1."""
    y = op.add(x, _one(x))
    same = op.equal(y, _one(x))
    apart = op.where(same, _one(x), op.subtract(y, _one(x)))
    near = op.where(same, x, op.divide(op.multiply(op.log(y), x), apart))
    return op.where(op.less(op.abs(x), _of(0.5, x)), near, op.log(y))


def _cbrt(x: Any) -> Any:
    return op.multiply(op.sign(x), op.power(op.abs(x), _of(1 / 3, x)))


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _away(x: Any) -> Any:
    """Rounded to whole numbers, halves away from 0."""
    return op.multiply(op.sign(x), op.floor(op.add(op.abs(x), _of(0.5, x))))


def _remainder(x: Any, y: Any) -> Any:
    return op.subtract(x, op.multiply(y, op.trunc(op.divide(x, y))))


def _by_truth(of_bool: Any, of_integers: Any) -> Callable[..., Any]:
    return lambda *xs: (of_bool if str(xs[0].ty.dtype) == "bool" else of_integers)(*xs)


UNARY = {
    "abs": Row(op.abs, np.abs), "negate": Row(op.negative, np.negative),
    "exponential": Row(op.exp, np.exp, "f"), "exponential_minus_one": Row(_expm1, np.expm1, "f"),
    "log": Row(op.log, np.log, "f"), "log_plus_one": Row(_log1p, np.log1p, "f"),
    "logistic": Row(op.sigmoid, _logistic, "f"), "sqrt": Row(op.sqrt, np.sqrt, "f"),
    "rsqrt": Row(op.rsqrt, lambda x: 1 / np.sqrt(x), "f"), "cbrt": Row(_cbrt, np.cbrt, "f"),
    "tanh": Row(op.tanh, np.tanh, "f"), "sign": Row(op.sign, np.sign, "f"),
    "floor": Row(op.floor, np.floor, "f"), "ceil": Row(op.ceil, np.ceil, "f"),
    "round_nearest_even": Row(op.round, np.round, "f"), "round_nearest_afz": Row(_away, None, "f"),
    "cosine": Row(op.cos, np.cos, "f"), "sine": Row(op.sin, np.sin, "f"),
    "tan": Row(op.tan, np.tan, "f"),
    "not": Row(_by_truth(op.logical_not, op.bitwise_not), np.invert, "bi"),
    "is_finite": Row(op.isfinite, np.isfinite, "f"),
    # chlo's
    "erf": Row(op.erf, None, "f"),
    "erfc": Row(lambda x: op.subtract(_one(x), op.erf(x)), None, "f"),
    "square": Row(lambda x: op.multiply(x, x), np.square),
    "sinh": Row(op.sinh, np.sinh, "f"), "cosh": Row(op.cosh, np.cosh, "f"),
    "asin": Row(op.asin, np.arcsin, "f"), "acos": Row(op.acos, np.arccos, "f"),
    "atan": Row(op.atan, np.arctan, "f"), "asinh": Row(op.asinh, np.arcsinh, "f"),
    "acosh": Row(op.acosh, np.arccosh, "f"), "atanh": Row(op.atanh, np.arctanh, "f"),
}  # fmt: skip
BINARY = {
    "add": Row(op.add, np.add), "subtract": Row(op.subtract, np.subtract),
    "multiply": Row(op.multiply, np.multiply), "divide": Row(op.divide, np.divide, "f"),
    "maximum": Row(op.maximum, np.maximum), "minimum": Row(op.minimum, np.minimum),
    "power": Row(op.power, np.power, "f"), "remainder": Row(_remainder, np.fmod, "f"),
    "atan2": Row(op.atan2, np.arctan2, "f"),
    "and": Row(_by_truth(op.logical_and, op.bitwise_and), np.bitwise_and, "bi"),
    "or": Row(_by_truth(op.logical_or, op.bitwise_or), np.bitwise_or, "bi"),
    "xor": Row(_by_truth(op.logical_xor, op.bitwise_xor), np.bitwise_xor, "bi"),
}  # fmt: skip
COMPARISONS = {
    name: Row(partial(compared, function), folded, "fib")
    for name, function, folded in (
        ("EQ", op.equal, np.equal), ("NE", op.not_equal, np.not_equal),
        ("GT", op.greater, np.greater), ("GE", op.greater_equal, np.greater_equal),
        ("LT", op.less, np.less), ("LE", op.less_equal, np.less_equal),
    )
}  # fmt: skip
_WHERE = Row(op.where, np.where, "fib")


def kind_of(dtype: str) -> str:
    return "f" if dtype in FLOATS else "b" if dtype == "bool" else "i"


def apply(
    ctx: Context, row: Row, xs: Sequence[Tensor], shape: tuple[int, ...], dtype: str
) -> Tensor:
    """The result of a row, in as few elements as it has different ones.

    Raises ValueError for a dtype that the row is not for.
    """
    wrong = [x.dtype for x in xs if kind_of(x.dtype) not in row.dtypes]
    if wrong and not all(x.known for x in xs):
        raise ValueError(f"operands of {wrong[0]} are not supported")
    parts = [(1,) * len(shape) if not x.rank else x.narrow for x in xs]
    narrow = np.broadcast_shapes(*parts)
    if all(x.known for x in xs) and row.folded and int(np.prod(narrow)) <= _FOLDED:
        with np.errstate(all="ignore"):
            arrays = [x.part.reshape(p) for x, p in zip(xs, parts, strict=True)]
            made = np.asarray(row.folded(*arrays)).astype(numpy_dtype(dtype))
        return of_array(np.broadcast_to(made, narrow), dtype, shape)
    # A number needs no axes, as long as another operand has them.
    exprs = [
        relax.const(x.part.reshape(()), x.dtype) if x.known and x.part.size == 1 else x.expr()
        for x in xs
    ]
    if all(not shape_of(e) for e in exprs):
        exprs = [x.expr() for x in xs]
    expr = ctx.emit(row.made(*exprs))
    return Tensor(shape, dtype, reshaped(ctx, expr, narrow))


def _by(row: Row) -> Builder:
    return lambda ctx, step: apply(ctx, row, step.operands, step.shape, step.dtype)


def _maximum(ctx: Context, step: Step) -> Tensor:
    """Of a tensor and -inf, what JAX begins maxima with, the tensor."""
    a, b = step.operands
    for x, other in ((a, b), (b, a)):
        if x.dtype in FLOATS and x.number() == -np.inf and other.shape == step.shape:
            return other
    return apply(ctx, BINARY["maximum"], [a, b], step.shape, step.dtype)


def _compare(ctx: Context, step: Step) -> Tensor:
    row = COMPARISONS[word(step.attribute("comparison_direction"))]
    return apply(ctx, row, step.operands, step.shape, "bool")


def _select(ctx: Context, step: Step) -> Tensor:
    """(truth, where it is true, where it is not)."""
    chosen = step.operands[0].number()
    if chosen is not None:
        return step.operands[1 if chosen else 2]
    return apply(ctx, _WHERE, step.operands, step.shape, step.dtype)


def _clamp(ctx: Context, step: Step) -> Tensor:
    """(least, x, most)."""
    least, x, most = step.operands
    raised = apply(ctx, BINARY["maximum"], [x, least], step.shape, step.dtype)
    return apply(ctx, BINARY["minimum"], [raised, most], step.shape, step.dtype)


def _convert(ctx: Context, step: Step) -> Tensor:
    (x,) = step.operands
    if x.dtype == step.dtype:
        return x
    if x.known:
        with np.errstate(all="ignore"):
            return Tensor(x.shape, step.dtype, x.part.astype(numpy_dtype(step.dtype)))
    part = x.part
    if step.dtype == "bool":
        part = ctx.emit(op.not_equal(part, number(ctx, 0, x.dtype)))
    return Tensor(x.shape, step.dtype, cast(ctx, part, step.dtype), argument=x.argument)


ELEMENTWISE: dict[str, Builder] = {
    **{name: _by(row) for name, row in {**UNARY, **BINARY}.items()},
    "clamp": _clamp,
    "compare": _compare,
    "convert": _convert,
    "maximum": _maximum,
    "select": _select,
}
"""Operation -> builder."""
