"""Products of tensors over some of their axes (`dot_general`), as matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tvm import relax

from ...dtypes import FLOATS
from ..context import Context, shape_of
from .operation import Builder, Step
from .tensors import Tensor, of_expr, reshape, transpose

op = relax.op


def _dot_general(ctx: Context, step: Step) -> Tensor:
    """(lhs, rhs): shared axes, then lhs' and rhs' others; what is contracted is summed."""
    lhs, rhs = step.operands
    numbers = import_module("jaxlib.mlir.dialects.stablehlo").DotDimensionNumbers(
        step.attribute("dot_dimension_numbers")
    )
    shared = (
        [int(a) for a in numbers.lhs_batching_dimensions],
        [int(a) for a in numbers.rhs_batching_dimensions],
    )
    over = (
        [int(a) for a in numbers.lhs_contracting_dimensions],
        [int(a) for a in numbers.rhs_contracting_dimensions],
    )
    return dot(ctx, lhs, rhs, shared, over, step.dtype)


def dot(
    ctx: Context, lhs: Tensor, rhs: Tensor, shared: tuple[list[int], list[int]],
    over: tuple[list[int], list[int]], dtype: str,
) -> Tensor:  # fmt: skip
    """Raises ValueError for other dtypes than floating-point ones."""
    if {lhs.dtype, rhs.dtype, dtype} - set(FLOATS) or lhs.dtype != rhs.dtype:
        raise ValueError(f"of {lhs.dtype} and {rhs.dtype} to {dtype} is not supported")
    rows = [a for a in range(lhs.rank) if a not in (*shared[0], *over[0])]
    columns = [a for a in range(rhs.rank) if a not in (*shared[1], *over[1])]

    def flat(x: Tensor, *axes: Sequence[int]) -> Any:
        """Each list of axes as one axis; the shared ones only where there are any."""
        x = transpose(ctx, x, [a for some in axes for a in some])
        sizes = iter(x.shape)
        whole = [math.prod(next(sizes) for _ in some) for some in axes]
        return reshape(ctx, x, tuple(whole if axes[0] else whole[1:])).full(ctx)

    a, b = flat(lhs, shared[0], rows, over[0]), flat(rhs, shared[1], over[1], columns)
    out = None if dtype == lhs.dtype else dtype
    made = ctx.emit(op.matmul(a, b, out_dtype=out))
    sizes = [lhs.shape[i] for i in (*shared[0], *rows)] + [rhs.shape[i] for i in columns]
    assert math.prod(shape_of(made)) == math.prod(sizes)
    return reshape(ctx, of_expr(made), tuple(sizes))


PRODUCTS: dict[str, Builder] = {"dot_general": _dot_general}
"""Operation -> builder."""
