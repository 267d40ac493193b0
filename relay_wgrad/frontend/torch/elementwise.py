"""ATen's operators of one element at a time: the records of `ops.elementwise`, in ATen's types.

Operands are brought to the dtype in which PyTorch combines them.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...ir import constant
from ...ops.elementwise import RECORDS, Elementwise, by
from ..context import Context
from .call import Builder, Call, as_dtype, promoted

op = relax.op
_OF_TRUTHS = {"add": "logical_or", "multiply": "logical_and"}


def applied(record: Elementwise, ctx: Context, *operands: Any) -> Any:
    """What a record makes, bound."""
    return ctx.emit(record.apply(ctx.emit, *operands))


def unary(record: Elementwise) -> Builder:
    """One operand, which integers reach as the result's float."""
    return lambda ctx, call: applied(record, ctx, as_dtype(ctx, call.args[0], call.dtype))


def _fixed(record: Elementwise) -> Builder:
    """A step function: its gradient is zero."""
    return lambda ctx, call: ctx.emit(op.grad.no_grad(applied(record, ctx, call.args[0])))


def _tested(record: Elementwise) -> Builder:
    """A truth value of a number, which of integers is one for all."""

    def build(ctx: Context, call: Call) -> Any:
        x = call.args[0]
        if "float" not in str(x.ty.dtype):
            return ctx.full(call.shape, record.name == "isfinite", "bool")
        return applied(record, ctx, x)

    return build


def binary(record: Elementwise, swapped: bool = False) -> Builder:
    """Two operands in the result's dtype; `alpha` multiplies the second, as ATen has it."""

    def build(ctx: Context, call: Call) -> Any:
        a, b = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
        if call.dtype == "bool":
            if record.name not in _OF_TRUTHS:
                raise ValueError("arithmetic of bool tensors is not supported")
            return applied(RECORDS[_OF_TRUTHS[record.name]], ctx, a, b)
        alpha = call.setting("alpha", 1) if len(call.args) < 3 else call.args[2]
        if swapped:
            a, b = b, a
        if alpha != 1:
            b = ctx.emit(op.multiply(b, constant(alpha, call.dtype)))
        return applied(record, ctx, a, b)

    return build


def _compared(record: Elementwise) -> Builder:
    """Two operands in the dtype to which PyTorch promotes them; the result is bool."""

    def build(ctx: Context, call: Call) -> Any:
        dtype = promoted(call, 0, 1)
        return applied(record, ctx, *(as_dtype(ctx, call.args[i], dtype) for i in range(2)))

    return build


def _logical(record: Elementwise) -> Builder:
    """Of truth values; a number is true where it is not 0."""

    def build(ctx: Context, call: Call) -> Any:
        truths = []
        for i in range(len(call.args)):
            x = call.args[i]
            if str(x.ty.dtype) != "bool":
                x = ctx.emit(op.not_equal(x, constant(0, str(x.ty.dtype))))
            truths.append(x)
        return applied(record, ctx, *truths)

    return build


def _bitwise(record: Elementwise) -> Builder:
    """Of integers, or of truth values."""

    def build(ctx: Context, call: Call) -> Any:
        operands = [as_dtype(ctx, call.args[i], call.dtype) for i in range(record.operands)]
        return applied(record, ctx, *operands)

    return build


def _row(record: Elementwise) -> Builder:
    if record.gives == "bool":
        return _tested(record) if record.operands == 1 else _compared(record)
    if "b" in record.takes:
        return _logical(record) if record.takes == "b" else _bitwise(record)
    if record.operands == 2:
        return binary(record)
    return unary(record) if record.slope == "smooth" else _fixed(record)


ELEMENTWISE: dict[str, Builder] = {name: _row(record) for name, record in by("torch").items()}
"""ATen overload -> builder."""
