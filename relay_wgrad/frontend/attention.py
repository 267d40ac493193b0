"""Attention: softmax(q·kᵀ·scale + masks)·v, of which some rows may be kept from all columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..dtypes import FLOATS
from .context import Context, shape_of
from .indexing import constant_indices

op = relax.op


def attention(
    ctx: Context, q: Any, k: Any, v: Any, *, dropped: Callable[[Any], Any] | None = None,
    **given: Any,
) -> Any:  # fmt: skip
    """softmax(cap(q·kᵀ·scale) + masks)·v of (…, rows, features) each, in q's dtype.

    dropped : what dropout makes of the softmax's weights; given : as `attention_weights` has it.
    """
    weights, _ = attention_weights(ctx, q, k, **given)
    return ctx.emit(op.matmul(weights if dropped is None else dropped(weights), v))


def attention_weights(
    ctx: Context, q: Any, k: Any, *, scale: float, masks: Sequence[Any] = (),
    causal: bool = False, softcap: float = 0.0, empty: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """(the softmax, what it is of: cap(q·kᵀ·scale) + masks).

    masks : each None, truths that say what is kept, or floats that are added.
    causal : a row has the columns up to its own number.
    softcap : where it is not 0, cap(x) is softcap tanh(x / softcap).
    empty : the weights of a row of which nothing is kept are 0, as PyTorch's; else such truths are
        refused where they are not constant, and floats give NaN.

    Raises ValueError for truths that may keep nothing of a row.
    """
    rank, dtype = len(shape_of(k)), str(q.ty.dtype)

    def const(value: float) -> Any:
        return relax.const(np.asarray(value, dtype), dtype)

    turned = ctx.emit(op.permute_dims(k, [*range(rank - 2), rank - 1, rank - 2]))
    logits = ctx.emit(op.multiply(op.matmul(q, turned), const(scale)))
    if softcap:
        capped = op.tanh(op.divide(logits, const(softcap)))
        logits = ctx.emit(op.multiply(capped, const(softcap)))
    below = [np.tril(np.ones(shape_of(logits)[-2:], bool))] if causal else []
    for mask in (*(relax.const(b, "bool") for b in below), *masks):
        if mask is not None:
            logits = _masked(ctx, logits, mask, dtype, empty)
    may_be_empty = empty and not all(m is None or _keeps_all(ctx, m) for m in masks)
    dead, logits = _without_empty_rows(ctx, logits) if may_be_empty else (None, logits)
    return _zeros_in(ctx, dead, ctx.emit(op.nn.softmax(logits, -1))), logits


def _masked(ctx: Context, logits: Any, mask: Any, dtype: str, empty: bool) -> Any:
    if str(mask.ty.dtype) in FLOATS:
        same = str(mask.ty.dtype) == dtype
        return ctx.emit(op.add(logits, mask if same else op.astype(mask, dtype)))
    kept = constant_indices(mask)
    if not empty and (kept is None or not kept.any(-1).all()):
        raise ValueError("a mask that may keep nothing of a row is not supported")
    least = relax.const(np.asarray(-math.inf, dtype), dtype)
    return ctx.emit(op.where(mask, logits, least))


def _without_empty_rows(ctx: Context, logits: Any) -> tuple[Any, Any]:
    """(which rows are of -inf alone, the logits with 0 in those: a softmax of -inf is NaN, and so
    would its gradient be, whatever is made of it)."""
    dtype = str(logits.ty.dtype)
    least = relax.const(np.asarray(-math.inf, dtype), dtype)
    dead = ctx.emit(op.equal(ctx.emit(op.max(logits, [-1], keepdims=True)), least))
    return dead, _zeros_in(ctx, dead, logits)


def _zeros_in(ctx: Context, rows: Any, x: Any) -> Any:
    """x, and 0 in these rows; all of x where rows is None."""
    dtype = str(x.ty.dtype)
    zero = relax.const(np.asarray(0, dtype), dtype)
    return x if rows is None else ctx.emit(op.where(rows, zero, x))


def _keeps_all(ctx: Context, mask: Any) -> bool:
    """Whether each row of a mask keeps something, by what is known of it: a constant's values; of
    floats that are computed, that no -inf and nothing of the batch goes into them."""
    values = constant_indices(mask)
    if values is not None:
        return bool((values if values.dtype == bool else values > -math.inf).any(-1).all())
    if str(mask.ty.dtype) not in FLOATS:
        return False
    seen: set[Any] = set()
    waiting = [mask]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        bound = ctx.builder.lookup_binding(value)
        if bound is None and str(value.name) not in ctx.parameters:
            return False
        variables, constants = _leaves(bound) if bound is not None else ([], [])
        if any(np.isneginf(np.asarray(c, "float64")).any() for c in constants):
            return False
        waiting += variables
    return True


def _leaves(value: Any) -> tuple[list[Any], list[Any]]:
    """(the variables of an expression, the values of its constant tensors)."""
    found: list[Any] = []
    relax.analysis.post_order_visit(value, found.append)
    constants = [e.value for e in found if isinstance(e, tvm.ir.Constant)]
    return (
        [e for e in found if isinstance(e, relax.Var)],
        [c.numpy() for c in constants if isinstance(c, tvm.runtime.Tensor)],
    )


def heads_repeated(ctx: Context, x: Any, heads: int) -> Any:
    """(…, few, rows, features): each head as often as it takes to be `heads`."""
    shape = shape_of(x)
    times = heads // shape[-3]
    apart = ctx.emit(op.reshape(x, (*shape[:-2], 1, *shape[-2:])))
    wide = ctx.emit(op.broadcast_to(apart, (*shape[:-2], times, *shape[-2:])))
    return ctx.emit(op.reshape(wide, (*shape[:-3], heads, *shape[-2:])))
