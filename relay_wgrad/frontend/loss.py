"""The loss at a network's end, and the input that it is compared with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from .context import Context, shape_of
from .graph import InputSpec

LOSSES = ("cross_entropy", "mse")


def add_loss(
    ctx: Context, loss: str, wanted: str, result: Any
) -> tuple[tuple[InputSpec, relax.Var], Any, Any]:
    """(the labels or target, the logits, the scalar loss) of the network's result.

    Raises ValueError for a result, named `wanted`, that the loss does not take.
    """
    shape = shape_of(result)
    dtype = ctx.options.dtype
    if str(result.ty.dtype) != dtype:
        raise ValueError(f"{loss} wants {dtype}, but {wanted!r} is {result.ty.dtype}")
    if loss == "mse":
        spec = InputSpec(ctx.unique("target"), "target", shape, dtype)
        var = relax.Var(spec.name, relax.TensorType(shape, dtype))
        error = ctx.emit(relax.op.subtract(result, var))
        return (spec, var), result, ctx.emit(relax.op.mean(relax.op.multiply(error, error)))
    if len(shape) < 2 or math.prod(shape[2:]) != 1:
        raise ValueError(
            f"cross_entropy wants logits (N, classes), but {wanted!r} is {list(shape)}; "
            "loss='mse' takes any shape"
        )
    if len(shape) > 2:
        result = ctx.emit(relax.op.reshape(result, shape[:2]))
    spec = InputSpec(ctx.unique("labels"), "labels", shape[:1], "int64")
    var = relax.Var(spec.name, relax.TensorType(shape[:1], "int64"))
    log_probability = ctx.emit(relax.op.nn.log_softmax(result, 1))
    safe, wrong = _guarded(ctx, var, shape[1], dtype)
    picked = ctx.emit(relax.op.nn.nll_loss(log_probability, safe))
    return (spec, var), result, ctx.emit(relax.op.add(picked, wrong))


def _guarded(ctx: Context, labels: Any, classes: int, dtype: str) -> tuple[Any, Any]:
    """(labels that are all classes, what to add to the loss: 0, or NaN for a wrong label).

    `nll_loss` reads where a label points, and skips -100; so a wrong label must not reach it, in a
    program that somebody compiles without `Trainer` either.
    """

    def const(value: float, kind: str) -> Any:
        return relax.const(np.asarray(value, kind), kind)

    low = ctx.emit(relax.op.less(labels, const(0, "int64")))
    high = ctx.emit(relax.op.greater_equal(labels, const(classes, "int64")))
    outside = ctx.emit(relax.op.logical_or(low, high))
    safe = ctx.emit(relax.op.where(outside, const(0, "int64"), labels))
    marks = ctx.emit(relax.op.where(outside, const(math.nan, dtype), const(0, dtype)))
    return safe, ctx.emit(relax.op.sum(marks))
