"""The loss at a network's end: which there are, their options, and the input they compare with.

    from_torch(model, (x,), loss=CrossEntropy(label_smoothing=0.1, ignore_index=255))
    from_torch(model, (x,), loss="cross_entropy(label_smoothing=0.1, ignore_index=255)")

Values and reductions are those of PyTorch's functions of these names and options.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tvm import relax
from tvm.ir import IRModule

from ..named_options import record_of, text_of
from . import loss_terms as terms
from .context import Context, Options, shape_of
from .graph import InputSpec


@dataclass(frozen=True)
class Loss:
    """What is minimized: of the network's result and a target, a scalar.

    reduction : "mean" or "sum" of all elements' losses.
    """

    name: ClassVar[str] = ""
    kind: ClassVar[str] = "target"  # of its input: floats of the result's shape

    reduction: str = dataclasses.field(default="mean", kw_only=True)

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            self._refuse("reduction", "mean or sum", self.reduction)

    def _refuse(self, option: str, rule: str, value: Any) -> None:
        raise ValueError(f"{self.name}: {option} must be {rule}, got {value!r}")

    def _check(self, option: str, rule: str, low: float, high: float, *, above: bool) -> None:
        """Raises for what is no number from `low` (or above it) to `high`."""
        value = getattr(self, option)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (low < value if above else low <= value) or not value <= high:
            self._refuse(option, rule, value)

    def _numbers(self, option: str, rule: str) -> None:
        """Makes a tuple of floats of a sequence of finite numbers from 0 on, or raises."""
        given = getattr(self, option)
        if given is None:
            return
        try:
            values = [float(v) for v in np.asarray(given, "float64").reshape(-1)]
        except (TypeError, ValueError):
            values = []
        if not values or not all(0 <= v < math.inf for v in values):
            self._refuse(option, rule, given)
        object.__setattr__(self, option, tuple(values))

    def __str__(self) -> str:
        """As `loss_of` reads it."""
        return text_of(self.name, self)

    def each(self, ctx: Context, result: Any, target: Any) -> Any:
        """The loss of each element."""
        raise NotImplementedError


@dataclass(frozen=True)
class MSE(Loss):
    """The squared distance from a target of the result's shape."""

    name = "mse"

    def each(self, ctx: Context, result: Any, target: Any) -> Any:
        return terms.squared(ctx, result, target)


@dataclass(frozen=True)
class L1(Loss):
    """The absolute distance from a target of the result's shape."""

    name = "l1"

    def each(self, ctx: Context, result: Any, target: Any) -> Any:
        return terms.absolute(ctx, result, target)


@dataclass(frozen=True)
class Huber(Loss):
    """Half the square of errors below `delta`, from there on delta (|error| - delta / 2)."""

    name = "huber"

    delta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("delta", "a positive number", 0, math.nextafter(math.inf, 0), above=True)

    def each(self, ctx: Context, result: Any, target: Any) -> Any:
        return terms.rounded(ctx, result, target, self.delta, huber=True)


@dataclass(frozen=True)
class SmoothL1(Loss):
    """Huber's over `beta`; with a beta of 0 it is L1."""

    name = "smooth_l1"

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta", "a number from 0 on", 0, math.nextafter(math.inf, 0), above=False)

    def each(self, ctx: Context, result: Any, target: Any) -> Any:
        return terms.rounded(ctx, result, target, self.beta, huber=False)


@dataclass(frozen=True)
class BCEWithLogits(Loss):
    """The binary cross-entropy of sigmoid(result) with a target of its shape, from 0 to 1.

    pos_weight : what counts as often for a target of 1; one number, or one for each channel
        (axis 1).
    """

    name = "bce_with_logits"

    pos_weight: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._numbers("pos_weight", "numbers from 0 on")

    def each(self, ctx: Context, result: Any, target: Any) -> Any:
        weight = None
        if isinstance(self.pos_weight, tuple):
            weight = self._column(ctx, shape_of(result), self.pos_weight)
        return terms.bce_with_logits(ctx, result, target, pos_weight=weight)

    def _column(self, ctx: Context, shape: tuple[int, ...], given: tuple[float, ...]) -> Any:
        if len(given) == 1:
            return ctx.const(given[0])
        if len(shape) < 2 or shape[1] != len(given):
            self._refuse(
                "pos_weight", f"one number or one for each channel of {list(shape)}", given
            )
        column = [len(given) if a == 1 else 1 for a in range(len(shape))]
        return ctx.const(np.reshape(given, column))


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The cross-entropy of softmax(result) over the classes, axis 1, with labels.

    Of a result (N, C) labels are int64 (N,), of (N, C, d…), as of a segmentation's pixels, (N, d…).

    label_smoothing : from 0 to 1: the part of the target that is spread over all classes.
    ignore_index : a label that counts for nothing, which may be no class; None: there is none.  The
        mean is over the others; a batch without others has a loss of NaN.
    weight : one number for each class; the mean is over the labels' weights.
    probabilities : the target is probabilities of the classes, floats of the result's shape (as for
        mixed images), not labels.
    """

    name = "cross_entropy"

    label_smoothing: float = 0.0
    ignore_index: int | None = None
    weight: Sequence[float] | None = None
    probabilities: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("label_smoothing", "from 0 to 1", 0, 1, above=False)
        self._numbers("weight", "a number from 0 on for each class")
        index: Any = self.ignore_index
        if self.probabilities not in (True, False):
            self._refuse("probabilities", "True or False", self.probabilities)
        whole = isinstance(index, int) and not isinstance(index, bool) and abs(index) < 2**62
        if index is not None and not whole:
            self._refuse("ignore_index", "an integer", index)
        if index is not None and self.probabilities:
            self._refuse("ignore_index", "left out with probabilities", index)

    @property
    def plain(self) -> bool:
        """Whether no option changes it."""
        return (self.label_smoothing, self.ignore_index, self.weight) == (0.0, None, None)


LOSSES: dict[str, type[Loss]] = {
    record.name: record for record in (CrossEntropy, BCEWithLogits, MSE, L1, SmoothL1, Huber)
}
"""By name; `CrossEntropy` is the default."""


def loss_of(given: str | Loss, *others: str) -> Loss | str:
    """The loss that a user names: a record, or its text, as `huber(delta=2)`; or one of `others`.

    Raises ValueError for another name or option, and for values that an option does not have;
    TypeError for another type.
    """
    if isinstance(given, Loss) or given in others:
        return given
    if not isinstance(given, str):
        raise TypeError(f"loss must be a name or a loss, got {type(given).__name__}")
    return record_of("loss", given, LOSSES, others)


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
    each = loss.each(ctx, result, target[1])
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
    if loss.plain and len(shape) == 2:
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
