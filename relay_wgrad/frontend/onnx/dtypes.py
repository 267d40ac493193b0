"""ONNX's numbers of dtypes; floats are of one dtype throughout a graph."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...dtypes import FLOATS
from ..context import Context

FLOAT_TYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
OTHER_TYPES = {6: "int32", 7: "int64", 9: "bool"}


def as_float(ctx: Context, x: Any) -> Any:
    """In the graph's dtype: the whole graph has one."""
    dtype = str(x.ty.dtype)
    return x if dtype in FLOATS else ctx.emit(relax.op.astype(x, ctx.options.dtype))
