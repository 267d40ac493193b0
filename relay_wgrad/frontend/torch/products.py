"""ATen's matrix products and what is made of them: einsum, scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..context import Context, shape_of
from ..products import einsum
from .call import Builder, Call, as_dtype, constant
from .indexing import known

op = relax.op


def _matmul(ctx: Context, call: Call) -> Any:
    return ctx.emit(op.matmul(call.args[0], call.args[1]))


def _added_product(ctx: Context, call: Call) -> Any:
    """beta x + alpha (a @ b)."""
    x, a, b = (call.args[i] for i in range(3))
    made = ctx.emit(op.matmul(a, b))
    for name, factor in (("alpha", call.setting("alpha", 1)), ("beta", call.setting("beta", 1))):
        if factor != 1:
            scaled = op.multiply(made if name == "alpha" else x, constant(factor, call.dtype))
            made, x = (ctx.emit(scaled), x) if name == "alpha" else (made, ctx.emit(scaled))
    return ctx.emit(op.add(made, x))


def _einsum(ctx: Context, call: Call) -> Any:
    if call.arg(2) is not None:
        raise ValueError("a path is not supported: operands are taken from the left")
    return einsum(ctx, str(call.args[0]), [as_dtype(ctx, x, call.dtype) for x in call.args[1]])


def _attention(ctx: Context, call: Call) -> Any:
    """softmax(q·kᵀ·scale + mask)·v; a mask of truths keeps where it is true."""
    q, k, v = (call.args[i] for i in range(3))
    given = call.setting("scale")
    scale = 1 / math.sqrt(shape_of(q)[-1]) if given is None else float(given)
    if call.setting("enable_gqa", False):
        k, v = (_repeated(ctx, x, shape_of(q)[-3]) for x in (k, v))
    rank = len(shape_of(k))
    turned = ctx.emit(op.permute_dims(k, [*range(rank - 2), rank - 1, rank - 2]))
    logits = ctx.emit(op.multiply(op.matmul(q, turned), constant(scale, call.dtype)))
    mask = call.arg(3)
    if call.arg(5, False):
        if mask is not None:
            raise ValueError("a mask beside is_causal is not supported")
        mask = constant(np.tril(np.ones(shape_of(logits)[-2:], bool)), "bool")
    if mask is not None:
        logits = _masked(ctx, logits, mask, call.dtype)
    return ctx.emit(op.matmul(ctx.emit(op.nn.softmax(logits, -1)), v))


def _masked(ctx: Context, logits: Any, mask: Any, dtype: str) -> Any:
    if str(mask.ty.dtype) != "bool":
        return ctx.emit(op.add(logits, as_dtype(ctx, mask, dtype)))
    kept = known(mask)
    if kept is None or not kept.any(-1).all():
        raise ValueError("a mask that may keep nothing of a row is not supported")
    return ctx.emit(op.where(mask, logits, constant(-math.inf, dtype)))


def _repeated(ctx: Context, x: Any, heads: int) -> Any:
    """Each of few heads as often as it takes to be as many as queries have."""
    shape = shape_of(x)
    times = heads // shape[-3]
    apart = ctx.emit(op.reshape(x, (*shape[:-2], 1, *shape[-2:])))
    wide = ctx.emit(op.broadcast_to(apart, (*shape[:-2], times, *shape[-2:])))
    return ctx.emit(op.reshape(wide, (*shape[:-3], heads, *shape[-2:])))


PRODUCTS: dict[str, Builder] = {
    "addmm.default": _added_product,
    "baddbmm.default": _added_product,
    "bmm.default": _matmul,
    "einsum.default": _einsum,
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "scaled_dot_product_attention.default": _attention,
}
"""ATen overload -> builder."""
