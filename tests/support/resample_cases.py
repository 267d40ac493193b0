"""Resampling by a matrix along an axis, with few terms and with many."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from relay_wgrad.ops.resample import table_of

op = relax.op
RNG = np.random.default_rng(5)
X = (2, 3, 5, 4)
MATRIX = np.where(RNG.random((7, 5)) < 0.5, RNG.standard_normal((7, 5)), 0.0)
FULL = RNG.standard_normal((3, 5))


def module(matrix: Any, axis: int, shape: Any = X, dtype: str = "float64") -> tvm.IRModule:
    """sum of y squared, y = x resampled by a matrix along an axis; and y."""
    index, weight = table_of(matrix)
    wide = "float64" if dtype == "float64" else "float32"
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            tables = relax.const(index, "int32"), relax.const(weight.astype(wide), wide)
            y = bb.emit(op.nn.resample(x, *tables, axis))
            loss = bb.emit_output(op.sum(op.multiply(y, y)))
            y = bb.emit_output(y)
        bb.emit_func_output(relax.Tuple([loss, y]))
    return bb.get()
