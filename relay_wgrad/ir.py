"""Small words for Relax programs, which passes and backends share."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Op

from .dtypes import numpy_dtype
from .keys import CODEGEN, COMPOSITE, NO_ALIAS, OP_PATTERN, PRIMITIVE, SCHEDULED

OPAQUE = 8
"""tvm::relax::OpPatternKind::kOpaque: a kernel that is never fused, so that its schedule stays."""

FINISHED = {SCHEDULED: True, NO_ALIAS: True, OP_PATTERN: OPAQUE}
"""A kernel that is complete: TVM neither schedules nor fuses it; its buffers do not overlap."""

CHOICE = "prim.if_then_else"
"""A kernel's operator that reads one of two places, by a condition."""

_TAKEN = (COMPOSITE, CODEGEN)


@cache
def _derives(kind: Any, of: Any) -> bool:
    return issubclass(kind, of)


def is_a(value: Any, of: type) -> bool:
    """`isinstance`, for where the answer is often no: TVM's classes are asked for that in Python,
    which takes four times as long as to look up what they have said of a class before."""
    return _derives(value.__class__, of)


def op_name(value: Any) -> str:
    """The name of a called operator, "" for anything else."""
    if not is_a(value, relax.Call):
        return ""
    op = value.op
    return str(op.name) if is_a(op, Op) else ""


def beside(call: relax.Call | None, operand: Any) -> Any:
    """The operand beside another of a call with two; None where there is none, or several."""
    others = [arg for arg in call.args if not arg.same_as(operand)] if call is not None else []
    return others[0] if len(others) == 1 else None


def expressions(func: relax.Function) -> list[relax.Expr]:
    """Every expression of a function once, parts before what is made of them."""
    found: list[relax.Expr] = []
    relax.analysis.post_order_visit(func, found.append)
    return found


def constant(value: Any, dtype: str) -> relax.Constant:
    """A constant tensor of any dtype."""
    return relax.const(np.asarray(value, numpy_dtype(dtype)), dtype)


def const_like(value: float, like: Any) -> relax.Constant:
    """A number in the dtype of an expression."""
    return constant(value, str(like.ty.dtype))


def compared(function: Callable[[Any, Any], Any], a: Any, b: Any) -> relax.Expr:
    """A comparison of two tensors of one dtype, of truth values too, for which TVM has no code:
    LLVM's module would compare them as floats, and not pass its verification."""
    if str(a.ty.dtype) == "bool":
        a, b = (relax.op.astype(x, "uint8") for x in (a, b))
    return function(a, b)


def bytes_of(ty: Any) -> int:
    """The bytes of a tensor or a tuple of tensors, those left out whose sizes are not known."""
    if isinstance(ty, relax.TupleType):
        return sum(bytes_of(field) for field in ty.fields)
    return tensor_bytes(ty) or 0


def tensor_bytes(ty: Any) -> int | None:
    """The bytes of a tensor of known sizes; None for all else."""
    if not is_a(ty, relax.TensorType) or not is_a(ty.shape, relax.ShapeExpr):
        return None
    sizes, dtype = ty.shape.values[:], ty.dtype
    if dtype is None or not all(is_a(size, tirx.IntImm) for size in sizes):
        return None
    return math.prod(map(int, sizes)) * itemsize(str(dtype))


@cache
def itemsize(dtype: str) -> int:
    """The bytes of an element."""
    return int(tvm.DataType(dtype).itemsize)


def is_taken(func: relax.Function) -> bool:
    """Whether a backend has the function already."""
    return func.attrs is not None and any(key in func.attrs for key in _TAKEN)


def is_closed(func: relax.Function) -> bool:
    """Whether a backend, or a fusion, has the function already."""
    return is_taken(func) or (func.attrs is not None and PRIMITIVE in func.attrs)
