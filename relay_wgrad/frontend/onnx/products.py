"""Builders of ONNX' sums of products and attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from ..attention import attention as attention_of
from ..attention import heads_repeated
from ..context import Context, shape_of
from ..products import einsum as einsum_of
from .node import Node

op = relax.op


def einsum(ctx: Context, node: Node) -> Any:
    """Einsum, the operands from the left."""
    parts = [ctx.tensor(node.operand(i)) for i in range(len(node.operands))]
    return einsum_of(ctx, str(node.attr("equation")), parts)


_MASK, _NOT_TAKEN = 3, {4: "past_key", 5: "past_value", 6: "nonpad_kv_seqlen"}


def attention(ctx: Context, node: Node) -> Any:
    """Attention of (N, heads, rows, features), or (N, rows, heads·features) with their numbers.

    Its first result alone; keys and values of the past, and windows, are refused.
    """
    for index, name in _NOT_TAKEN.items():
        if node.has(index):
            raise ValueError(f"{name} is not supported")
    for side in ("left_window_size", "right_window_size"):
        if int(node.attr(side, -1)) >= 0:
            raise ValueError(f"{side}={node.attr(side)} is not supported")
    if any(node.proto.output[1:]):
        raise ValueError("outputs beside the first are not supported")
    given = [ctx.tensor(node.operand(i)) for i in range(3)]
    flat = len(shape_of(given[0])) == 3
    counts = [int(node.attr(name, 0)) for name in ("q_num_heads", *["kv_num_heads"] * 2)]
    q, k, v = (_apart(ctx, x, count) if flat else x for x, count in zip(given, counts, strict=True))
    heads, few = shape_of(q)[1], shape_of(k)[1]
    if few < 1 or heads % few:
        raise ValueError(f"{few} heads of keys do not divide {heads} of queries")
    if few != heads:
        k, v = (heads_repeated(ctx, x, heads) for x in (k, v))
    scale = node.attr("scale")
    out = attention_of(
        ctx, q, k, v,
        scale=1 / math.sqrt(shape_of(q)[-1]) if scale is None else float(scale),
        masks=[ctx.tensor(node.operand(_MASK)) if node.has(_MASK) else None],
        causal=bool(node.attr("is_causal", 0)), softcap=float(node.attr("softcap", 0.0)),
    )  # fmt: skip
    if not flat:
        return out
    n, heads, rows, features = shape_of(out)
    turned = ctx.emit(op.permute_dims(out, [0, 2, 1, 3]))
    return ctx.emit(op.reshape(turned, (n, rows, heads * features)))


def _apart(ctx: Context, x: Any, heads: int) -> Any:
    n, rows, features = shape_of(x)
    if heads < 1 or features % heads:
        raise ValueError(f"{heads} heads do not divide {features} features")
    split = ctx.emit(op.reshape(x, (n, rows, heads, features // heads)))
    return ctx.emit(op.permute_dims(split, [0, 2, 1, 3]))


PRODUCTS: dict[str, Callable[[Context, Node], Any]] = {"Attention": attention, "Einsum": einsum}
"""ONNX op -> builder."""
