"""The loss at a network's end, and the input that it is compared with."""

from __future__ import annotations

import math
from typing import Any

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
    return (spec, var), result, ctx.emit(relax.op.nn.nll_loss(log_probability, var))
