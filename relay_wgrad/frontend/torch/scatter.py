"""ATen's scatters and the losses that are made by them, with their backward ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ir import constant
from .. import loss_terms as terms
from ..context import Context, shape_of
from ..data_movement import broadcast
from ..indexing import constant_indices, wrapped
from ..resampling import by_matrix, chosen_matrix
from .call import Builder, Call, as_dtype
from .index_put import arranged, at_indices

op = relax.op


def _scatter(reduction: str) -> Builder:
    """(x, axis, index, source): a number at, or sums of elements to, places along an axis."""

    def build(ctx: Context, call: Call) -> Any:
        x, axis, index = call.args[0], int(call.args[1]), call.args[2]
        shape = shape_of(index)
        source = as_dtype(ctx, call.args[3], call.dtype)
        axis %= len(shape_of(x))
        rest = [n for a, n in enumerate(shape_of(x)) if a != axis]
        if (
            not shape_of(source)
            and shape[axis] == 1
            and rest == [*shape[:axis], *shape[axis + 1 :]]
        ):
            column = [-1 if a == axis else 1 for a in range(len(shape))]
            places = np.arange(shape_of(x)[axis], dtype="int64").reshape(column)
            chosen = op.equal(as_dtype(ctx, index, "int64"), constant(places, "int64"))
            return ctx.emit(op.where(ctx.emit(chosen), source, x))
        source = at_indices(ctx, source, shape)
        return ctx.emit(op.scatter_elements(x, index, source, axis, reduction))

    return build


def _embedding_backward(ctx: Context, call: Call) -> Any:
    """(dy, indices, rows, padding index, whether by frequency): the sums of what rows gave."""
    dy, index, rows, padding = (call.args[i] for i in range(4))
    if call.args[4]:
        raise ValueError("scale_grad_by_freq is not supported")
    width = shape_of(dy)[-1]
    flat = ctx.emit(op.reshape(dy, (math.prod(shape_of(index)), width)))
    index = ctx.emit(op.reshape(as_dtype(ctx, index, "int64"), (shape_of(flat)[0], 1)))
    if int(padding) >= 0:
        kept = ctx.emit(op.not_equal(index, constant(int(padding), "int64")))
        flat = ctx.emit(op.where(kept, flat, ctx.const(0.0)))
    zeros = ctx.emit(op.zeros((int(rows), width), call.dtype))
    return ctx.emit(op.scatter_nd(zeros, index, flat, "add"))


def _index_put(ctx: Context, call: Call) -> Any:
    """(x, indices or None for a whole axis, values, whether they are added)."""
    x, given, adds = call.args[0], list(call.args[1]), bool(call.arg(3, False))
    axes = [a for a, index in enumerate(given) if index is not None]
    count, size = len(axes), shape_of(x)
    indices = [given[a] for a in axes]
    if any(str(i.ty.dtype) == "bool" for i in indices):
        raise ValueError("by a mask the number of elements is not known on import")
    shape = np.broadcast_shapes(*(shape_of(i) for i in indices))
    values = as_dtype(ctx, call.args[2], call.dtype)
    places = [constant_indices(i) for i in indices]
    together = axes == list(range(axes[0], axes[0] + count))
    if adds and together and len(shape) == count and all(p is not None for p in places):
        lines = [_line(p, i, len(shape)) for i, p in enumerate(places)]
        if all(line is not None for line in lines):  # each axis by itself
            wide = (*size[: axes[0]], *shape, *size[axes[0] + count :])
            values = broadcast(ctx, values, wide)
            for axis, line in zip(axes, lines, strict=True):
                matrix = chosen_matrix(line % size[axis], size[axis]).T
                values = by_matrix(ctx, values, axis, matrix)
            return ctx.emit(op.add(x, values))
    columns = []
    for axis, index in zip(axes, indices, strict=True):
        index = wrapped(ctx, as_dtype(ctx, index, "int64"), size[axis])
        index = ctx.emit(op.broadcast_to(index, shape))
        columns.append(ctx.emit(op.reshape(index, (math.prod(shape), 1))))
    table = ctx.emit(op.concat(columns, 1)) if count > 1 else columns[0]
    x, values, order = arranged(ctx, x, axes, shape, values)
    flat = ctx.emit(op.reshape(values, (math.prod(shape), *shape_of(x)[count:])))
    made = ctx.emit(op.scatter_nd(x, table, flat, "add" if adds else "update"))
    return ctx.emit(op.permute_dims(made, np.argsort(order).tolist()))


def _line(places: Any, axis: int, rank: int) -> Any:
    """Indices that vary along one axis alone, flat; None where they vary along others."""
    shape = (1,) * (rank - places.ndim) + places.shape
    others = shape[:axis] + shape[axis + 1 :]
    return places.reshape(-1) if math.prod(others) == 1 else None


# ---- losses --------------------------------------------------------------------------------------


def _class_weights(ctx: Context, call: Call, at: int) -> tuple[Any, Any]:
    """Of (scores, labels, weights, reduction, ignored) from `at` on."""
    x, labels, weight, _, ignored = call.args[at : at + 5]
    return terms.class_weights(ctx, x, as_dtype(ctx, labels, "int64"), weight, int(ignored))


def _nll(ctx: Context, call: Call) -> tuple[Any, Any]:
    """(logarithms, labels, weights, reduction, ignored): the loss, and the weights' sum.

    A label that is no class makes it NaN.
    """
    x, reduction = call.args[0], terms.REDUCTIONS[call.args[3]]
    weights, counts = _class_weights(ctx, call, 0)
    labels = as_dtype(ctx, call.args[1], "int64")
    if reduction == "none":
        weight, ignored = call.args[2], int(call.args[4])
        each = terms.cross_entropy(ctx, x, labels, reduction="none", weight=weight, ignored=ignored)
        return each, ctx.const(0.0)
    high = constant(shape_of(x)[min(1, len(shape_of(x)) - 1)], "int64")
    wrong = op.logical_or(op.less(labels, constant(0, "int64")), op.greater_equal(labels, high))
    wrong = ctx.emit(op.logical_and(wrong, op.reshape(counts, shape_of(labels))))
    nothing = ctx.emit(op.where(wrong, ctx.const(math.nan), ctx.const(0.0)))
    total = terms.total(ctx, weights)
    loss = terms.total(ctx, ctx.emit(op.negative(op.multiply(x, weights))))
    loss = ctx.emit(op.add(loss, terms.total(ctx, nothing)))
    return ctx.emit(op.divide(loss, total)) if reduction == "mean" else loss, total


def _nll_backward(ctx: Context, call: Call) -> Any:
    """(dy, logarithms, labels, weights, reduction, ignored, the weights' sum)."""
    dy, mean = call.args[0], terms.REDUCTIONS[call.args[4]] == "mean"
    weights, _ = _class_weights(ctx, call, 1)
    total = call.args[6]
    if mean:
        dy = ctx.emit(op.divide(dy, total))
    elif shape_of(dy):
        dy = ctx.emit(op.expand_dims(dy, min(1, len(shape_of(weights)) - 1)))
    return ctx.emit(op.negative(op.multiply(weights, dy)))


SCATTERED: dict[str, Builder] = {
    "embedding_dense_backward.default": _embedding_backward,
    "_unsafe_index_put.default": _index_put,
    "index_put.default": _index_put,
    "nll_loss2d_backward.default": _nll_backward,
    "nll_loss2d_forward.default": _nll,
    "nll_loss_backward.default": _nll_backward,
    "nll_loss_forward.default": _nll,
    "scatter.src": _scatter("update"),
    "scatter.value": _scatter("update"),
    "scatter_add.default": _scatter("add"),
}
"""ATen overload -> builder."""
