"""ATen's matrix products and what is made of them: einsum, scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from ...dtypes import HALVES, wide_of
from ...ir import constant
from ..attention import attention, heads_repeated
from ..context import Context, shape_of
from ..layers import masked
from ..products import einsum
from .call import Builder, Call, as_dtype

op = relax.op


def _matmul(ctx: Context, call: Call) -> Any:
    return ctx.emit(op.matmul(call.args[0], call.args[1]))


def _added_product(ctx: Context, call: Call) -> Any:
    """beta x + alpha (a @ b); of half precision in float32, and rounded once."""
    x, a, b = (call.args[i] for i in range(3))
    is_half = call.dtype in HALVES
    wide = wide_of(call.dtype)
    x, made = as_dtype(ctx, x, wide), ctx.emit(op.matmul(a, b, wide if is_half else None))
    for name, factor in (("alpha", call.setting("alpha", 1)), ("beta", call.setting("beta", 1))):
        if factor != 1:
            scaled = op.multiply(made if name == "alpha" else x, constant(factor, wide))
            made, x = (ctx.emit(scaled), x) if name == "alpha" else (made, ctx.emit(scaled))
    return as_dtype(ctx, ctx.emit(op.add(made, x)), call.dtype)


def _einsum(ctx: Context, call: Call) -> Any:
    call.setting("path")  # PyTorch notes an order of the products where opt_einsum is installed
    return einsum(ctx, str(call.args[0]), [as_dtype(ctx, x, call.dtype) for x in call.args[1]])


def _attention(ctx: Context, call: Call) -> Any:
    """softmax(q·kᵀ·scale + mask)·v; a mask of truths keeps where it is true."""
    q, k, v = (call.args[i] for i in range(3))
    given = call.setting("scale")
    scale = 1 / math.sqrt(shape_of(q)[-1]) if given is None else float(given)
    if call.setting("enable_gqa", False):
        k, v = (heads_repeated(ctx, x, shape_of(q)[-3]) for x in (k, v))
    mask, rate, causal = call.arg(3), float(call.arg(4, 0.0)), bool(call.arg(5, False))
    if causal and mask is not None:
        raise ValueError("a mask beside is_causal is not supported")
    return attention(
        ctx, q, k, v, scale=scale, masks=[mask], causal=causal, empty=True,
        dropped=lambda weights: masked(ctx, weights, rate),
    )  # fmt: skip


PRODUCTS: dict[str, Builder] = {
    "addmm.default": _added_product,
    "addmv.default": _added_product,
    "baddbmm.default": _added_product,
    "bmm.default": _matmul,
    "dot.default": _matmul,
    "einsum.default": _einsum,
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "mv.default": _matmul,
    "scaled_dot_product_attention.default": _attention,
    "vdot.default": _matmul,
}
"""ATen overload -> builder."""
