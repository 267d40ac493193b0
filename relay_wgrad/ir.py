"""Small words for Relax programs, which passes and backends share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Op

from .dtypes import numpy_dtype
from .keys import CODEGEN, COMPOSITE, NO_ALIAS, OP_PATTERN, SCHEDULED

OPAQUE = 8
"""tvm::relax::OpPatternKind::kOpaque: a kernel that is never fused, so that its schedule stays."""

FINISHED = {SCHEDULED: True, NO_ALIAS: True, OP_PATTERN: OPAQUE}
"""A kernel that is complete: TVM neither schedules nor fuses it; its buffers do not overlap."""

_TAKEN = (COMPOSITE, CODEGEN)


def op_name(value: Any) -> str:
    """The name of a called operator, "" for anything else."""
    is_op = isinstance(value, relax.Call) and isinstance(value.op, Op)
    return str(value.op.name) if is_op else ""


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


def is_taken(func: relax.Function) -> bool:
    """Whether a backend has the function already."""
    return func.attrs is not None and any(key in func.attrs for key in _TAKEN)
