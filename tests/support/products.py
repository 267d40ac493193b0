"""Modules of one matrix product."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax


def product(
    shapes: tuple[Any, ...], dtype: str, turned: str = "", out: str | None = None,
    rectified: bool = False,
) -> tvm.IRModule:  # fmt: skip
    """A B, or relu(A B); `turned` names operands that are given as their transposes."""
    bb = relax.BlockBuilder()
    given = [
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape in zip("ab", shapes, strict=True)
    ]
    with bb.function("main", given):
        with bb.dataflow():
            a, b = (
                bb.emit(transposed(x)) if name in turned else x
                for name, x in zip("ab", given, strict=True)
            )
            made = relax.op.matmul(a, b, out_dtype=out)
            made = bb.emit_output(relax.op.nn.relu(bb.emit(made)) if rectified else made)
        bb.emit_func_output(made)
    return bb.get()


def transposed(x: Any) -> Any:
    """Of a tensor's last two axes."""
    *outer, rows, columns = range(x.ty.ndim)
    return relax.op.permute_dims(x, [*outer, columns, rows])
