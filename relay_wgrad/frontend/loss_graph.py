"""What a loss is in a training graph: its input, its terms, and the scalar that is minimized."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import IRModule

from . import loss_terms as terms
from .context import Context, Options, shape_of
from .graph import InputSpec
from .loss import L1, MSE, BCEWithLogits, CrossEntropy, Huber, Loss, SmoothL1


def _bce(ctx: Context, loss: BCEWithLogits, result: Any, target: Any) -> Any:
    weight = None
    if isinstance(loss.pos_weight, tuple):
        weight = _column(ctx, loss, shape_of(result), loss.pos_weight)
    return terms.bce_with_logits(ctx, result, target, pos_weight=weight)


def _column(
    ctx: Context, loss: BCEWithLogits, shape: tuple[int, ...], given: tuple[float, ...]
) -> Any:
    """The weights as a tensor that is one number, or one for each channel."""
    if len(given) == 1:
        return ctx.const(given[0])
    if len(shape) < 2 or shape[1] != len(given):
        loss.refuse("pos_weight", f"one number or one for each channel of {list(shape)}", given)
    column = [len(given) if a == 1 else 1 for a in range(len(shape))]
    return ctx.const(np.reshape(given, column))


def _huber(ctx: Context, loss: Huber, result: Any, target: Any) -> Any:
    return terms.rounded(ctx, result, target, loss.delta, huber=True)


def _smooth_l1(ctx: Context, loss: SmoothL1, result: Any, target: Any) -> Any:
    return terms.rounded(ctx, result, target, loss.beta, huber=False)


TERMS: dict[type[Loss], Callable[[Context, Any, Any, Any], Any]] = {
    MSE: lambda ctx, loss, result, target: terms.squared(ctx, result, target),
    L1: lambda ctx, loss, result, target: terms.absolute(ctx, result, target),
    Huber: _huber,
    SmoothL1: _smooth_l1,
    BCEWithLogits: _bce,
}
"""Each element's loss, by the record; (context, record, result, target of its shape)."""


def add_loss(
    ctx: Context, loss: Loss, wanted: str, result: Any
) -> tuple[tuple[InputSpec, relax.Var], Any, Any, int | None]:
    """(the labels or target, the logits, the scalar loss, classes of labels) of a result.

    Raises ValueError for a result, named `wanted`, that the loss does not take.
    """
    dtype = ctx.options.dtype
    if str(result.ty.dtype) != dtype:
        raise ValueError(f"{loss.name} wants {dtype}, but {wanted!r} is {result.ty.dtype}")
    if isinstance(loss, CrossEntropy):
        return _cross_entropy(ctx, loss, wanted, result)
    target = _input(ctx, "target", shape_of(result), dtype)
    each = TERMS[type(loss)](ctx, loss, result, target[1])
    return target, result, terms.reduced(ctx, each, loss.reduction), None


def loss_alone(loss: Loss, shape: Sequence[int], dtype: str) -> IRModule:
    """A module whose `main` gives the loss of logits of a shape and of their labels or target."""
    builder = relax.BlockBuilder()
    ctx = Context(Options(dtype, "eval", "off", 0), builder, {})
    result = relax.Var("logits", relax.TensorType(shape, dtype))
    with builder.function("main"):
        with builder.dataflow():
            (_, target), _, scalar, _ = add_loss(ctx, loss, "logits", result)
            made = builder.emit_output(scalar)
        builder.emit_func_output(made, [result, target])
    return builder.get()


def _cross_entropy(
    ctx: Context, loss: CrossEntropy, wanted: str, result: Any
) -> tuple[tuple[InputSpec, relax.Var], Any, Any, int | None]:
    shape, dtype = shape_of(result), ctx.options.dtype
    if len(shape) < 2:
        raise ValueError(
            f"cross_entropy wants logits (N, classes) or (N, classes, d…), but {wanted!r} is"
            f" {list(shape)}; loss='mse' takes any shape"
        )
    if len(shape) > 2 and math.prod(shape[2:]) == 1:  # of one whole image
        shape = shape[:2]
        result = ctx.emit(relax.op.reshape(result, shape))
    classes = shape[1]
    weight = None
    if isinstance(loss.weight, tuple):
        if len(loss.weight) != classes:
            raise ValueError(
                f"cross_entropy: weight must be a number for each of the {classes} classes of"
                f" {wanted!r}, got {len(loss.weight)}"
            )
        weight = ctx.const(loss.weight)
    logs = ctx.emit(relax.op.nn.log_softmax(result, 1))
    if loss.probabilities:
        target = _input(ctx, "target", shape, dtype)
        scalar = terms.cross_entropy_of(
            ctx, logs, target[1], reduction=loss.reduction, weight=weight,
            smoothing=loss.label_smoothing,
        )  # fmt: skip
        return target, result, scalar, None
    labels = _input(ctx, "labels", (shape[0], *shape[2:]), "int64", loss.ignore_index)
    if loss.has_defaults and len(shape) == 2:
        safe, wrong = _guarded(ctx, labels[1], classes, dtype)
        picked = ctx.emit(relax.op.nn.nll_loss(logs, safe, reduction=loss.reduction))
        return labels, result, ctx.emit(relax.op.add(picked, wrong)), classes
    scalar = terms.cross_entropy(
        ctx, logs, labels[1], reduction=loss.reduction, weight=weight, ignored=loss.ignore_index,
        smoothing=loss.label_smoothing,
    )  # fmt: skip
    return labels, result, scalar, classes


def _input(
    ctx: Context, kind: str, shape: tuple[Any, ...], dtype: str, ignored: int | None = None
) -> tuple[InputSpec, relax.Var]:
    return ctx.input(kind, kind, shape, dtype, ignored=ignored)


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
