"""ATen's functions of numbers, running sums, products and orders: rows beside `math.MATH`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...ir import constant
from .. import arithmetic
from ..context import Context, shape_of
from ..sorting import ordered
from .call import Builder, Call, as_dtype

op = relax.op


def _remainder(floor: bool) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        x, y = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
        if "float" not in call.dtype:
            if not floor:
                raise ValueError(f"of {call.dtype} is not supported")
            return ctx.emit(op.floor_mod(x, y))
        return arithmetic.remainder(ctx, x, y, floor)

    return build


def _product(ctx: Context, call: Call) -> Any:
    """(x), or (x, axis, keepdim); of PyTorch's primitive the axes are a list."""
    x = as_dtype(ctx, call.args[0], call.dtype)
    axis = call.arg(1)
    axes = list(range(len(shape_of(x)))) if axis is None else axis
    axes = [int(a) for a in (axes if isinstance(axes, (list, tuple)) else [axes])]
    return arithmetic.product(ctx, x, axes, bool(call.arg(2, False)))


def _running_sum(ctx: Context, call: Call) -> Any:
    x = as_dtype(ctx, call.args[0], call.dtype)
    return arithmetic.running_sum(ctx, x, int(call.args[1]) % len(call.shape))


def _extreme_place(function: Callable[..., Any]) -> Builder:
    """(x, axis, keepdim), or of all elements: the first of equal ones."""

    def build(ctx: Context, call: Call) -> Any:
        x, axis = call.args[0], call.arg(1)
        keep = bool(call.arg(2, False))
        if axis is not None:
            return ctx.emit(function(x, int(axis) % len(shape_of(x)), keepdims=keep))
        flat = ctx.emit(op.reshape(x, (-1,)))
        return ctx.emit(op.reshape(ctx.emit(function(flat, 0)), call.shape))

    return build


def _xlogy(ctx: Context, call: Call) -> Any:
    """x log(y), and 0 where x is 0, whatever y but NaN."""
    x, y = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
    none = op.equal(x, constant(0, call.dtype))
    none = ctx.emit(op.logical_and(none, op.logical_not(op.isnan(y))))
    return ctx.emit(op.multiply(x, op.log(op.where(none, constant(1, call.dtype), y))))


def _largest(ctx: Context, call: Call) -> tuple[Any, Any]:
    """(x, count, axis, whether the largest, whether in order): always in order here."""
    call.arg(4)
    count, axis = int(call.args[1]), int(call.arg(2, -1))
    return ordered(ctx, call.args[0], axis, count, descending=bool(call.arg(3, True)))


def _sorted(ctx: Context, call: Call) -> tuple[Any, Any]:
    """(x, axis, descending), of the stable overload by keywords."""
    call.setting("stable")
    axis = call.setting("dim", call.arg(1, -1))
    descending = call.setting("descending", call.arg(2, False))
    return ordered(ctx, call.args[0], int(axis), descending=bool(descending))


def _sorted_places(ctx: Context, call: Call) -> Any:
    return _sorted(ctx, call)[1]


CURVES: dict[str, Builder] = {
    "argmax.default": _extreme_place(op.argmax),
    "argmin.default": _extreme_place(op.argmin),
    "argsort.default": _sorted_places,
    "cumsum.default": _running_sum,
    "fmod.Scalar": _remainder(floor=False),
    "fmod.Tensor": _remainder(floor=False),
    "prod.default": _product,
    "prod.dim_int": _product,
    "remainder.Scalar": _remainder(floor=True),
    "remainder.Tensor": _remainder(floor=True),
    "sort.default": _sorted,
    "sort.stable": _sorted,
    "topk.default": _largest,
    "xlogy.Tensor": _xlogy,
}
"""ATen overload -> builder."""
