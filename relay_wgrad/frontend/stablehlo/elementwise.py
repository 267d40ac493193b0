"""Operations on elements: known numbers are computed here, and broadcasts stay broadcasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...dtypes import FLOATS, numpy_dtype
from ...ir import const_like, constant
from ...ops.elementwise import Elementwise, by
from ..context import Context, shape_of
from .operation import Builder, Step, cast
from .reader import word
from .tensors import Tensor, of_array, reshaped

op = relax.op
_FOLDED = 1 << 22  # elements: a known value of more is computed by the program


def _away(emit: Any, x: Any) -> Any:
    """Rounded to whole numbers, halves away from 0."""
    return op.multiply(op.sign(x), op.floor(op.add(op.abs(x), const_like(0.5, x))))


def _remainder(emit: Any, x: Any, y: Any) -> Any:
    return op.subtract(x, op.multiply(y, op.trunc(op.divide(x, y))))


_RECORDS = by("stablehlo")
COMPARISONS = {name: record for name, record in _RECORDS.items() if name.isupper()}
OPERATIONS = {
    **{name: record for name, record in _RECORDS.items() if name not in COMPARISONS},
    "round_nearest_afz": Elementwise("round away", built=_away),
    "remainder": Elementwise("remainder", np.fmod, 2, built=_remainder),
}
_WHERE = Elementwise("where", np.where, 3, "fib")


def kind_of(dtype: str) -> str:
    return "f" if dtype in FLOATS else "b" if dtype == "bool" else "i"


def apply(
    ctx: Context, record: Elementwise, xs: Sequence[Tensor], shape: tuple[int, ...], dtype: str
) -> Tensor:
    """The result of an operator, in as few elements as it has different ones.

    Raises ValueError for a dtype that it is not for.
    """
    wrong = [x.dtype for x in xs if kind_of(x.dtype) not in record.takes]
    if wrong and not all(x.known for x in xs):
        raise ValueError(f"operands of {wrong[0]} are not supported")
    parts = [(1,) * len(shape) if not x.rank else x.narrow for x in xs]
    narrow = np.broadcast_shapes(*parts)
    if all(x.known for x in xs) and record.numpy and int(np.prod(narrow)) <= _FOLDED:
        with np.errstate(all="ignore"):
            arrays = [x.part.reshape(p) for x, p in zip(xs, parts, strict=True)]
            made = np.asarray(record.numpy(*arrays)).astype(numpy_dtype(dtype))
        return of_array(np.broadcast_to(made, narrow), dtype, shape)
    # A number needs no axes, as long as another operand has them.
    exprs = [
        relax.const(x.part.reshape(()), x.dtype) if x.known and x.part.size == 1 else x.expr()
        for x in xs
    ]
    if all(not shape_of(e) for e in exprs):
        exprs = [x.expr() for x in xs]
    expr = ctx.emit(record.apply(ctx.emit, *exprs))
    return Tensor(shape, dtype, reshaped(ctx, expr, narrow))


def _by(record: Elementwise) -> Builder:
    return lambda ctx, step: apply(ctx, record, step.operands, step.shape, step.dtype)


def _maximum(ctx: Context, step: Step) -> Tensor:
    """Of a tensor and -inf, what JAX begins maxima with, the tensor."""
    a, b = step.operands
    for x, other in ((a, b), (b, a)):
        if x.dtype in FLOATS and x.number() == -np.inf and other.shape == step.shape:
            return other
    return apply(ctx, OPERATIONS["maximum"], [a, b], step.shape, step.dtype)


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
    raised = apply(ctx, OPERATIONS["maximum"], [x, least], step.shape, step.dtype)
    return apply(ctx, OPERATIONS["minimum"], [raised, most], step.shape, step.dtype)


def _convert(ctx: Context, step: Step) -> Tensor:
    (x,) = step.operands
    if x.dtype == step.dtype:
        return x
    if x.known:
        with np.errstate(all="ignore"):
            return Tensor(x.shape, step.dtype, x.part.astype(numpy_dtype(step.dtype)))
    part = x.part
    if step.dtype == "bool":
        part = ctx.emit(op.not_equal(part, constant(0, x.dtype)))
    return Tensor(x.shape, step.dtype, cast(ctx, part, step.dtype), argument=x.argument)


ELEMENTWISE: dict[str, Builder] = {
    **{name: _by(record) for name, record in OPERATIONS.items()},
    "clamp": _clamp,
    "compare": _compare,
    "convert": _convert,
    "maximum": _maximum,
    "select": _select,
}
"""Operation -> builder."""
