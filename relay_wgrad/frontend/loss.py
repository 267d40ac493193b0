"""The loss at a network's end: which there are, and their options; without TVM, for `--loss`.

    from_torch(model, (x,), loss=CrossEntropy(label_smoothing=0.1, ignore_index=255))
    from_torch(model, (x,), loss="cross_entropy(label_smoothing=0.1, ignore_index=255)")

Values and reductions are those of PyTorch's functions of these names and options; `loss_graph` says
how they are computed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..named_options import record_of, text_of


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
            self.refuse("reduction", "mean or sum", self.reduction)

    def refuse(self, option: str, rule: str, value: Any) -> None:
        raise ValueError(f"{self.name}: {option} must be {rule}, got {value!r}")

    def _check(self, option: str, rule: str, low: float, high: float, *, above: bool) -> None:
        """Raises for what is no number from `low` (or above it) to `high`."""
        value = getattr(self, option)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (low < value if above else low <= value) or not value <= high:
            self.refuse(option, rule, value)

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
            self.refuse(option, rule, given)
        object.__setattr__(self, option, tuple(values))

    def __str__(self) -> str:
        """As `loss_of` reads it."""
        return text_of(self.name, self)


@dataclass(frozen=True)
class MSE(Loss):
    """The squared distance from a target of the result's shape."""

    name = "mse"


@dataclass(frozen=True)
class L1(Loss):
    """The absolute distance from a target of the result's shape."""

    name = "l1"


@dataclass(frozen=True)
class Huber(Loss):
    """Half the square of errors below `delta`, from there on delta (|error| - delta / 2)."""

    name = "huber"

    delta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("delta", "a positive number", 0, math.nextafter(math.inf, 0), above=True)


@dataclass(frozen=True)
class SmoothL1(Loss):
    """Huber's over `beta`; with a beta of 0 it is L1."""

    name = "smooth_l1"

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta", "a number from 0 on", 0, math.nextafter(math.inf, 0), above=False)


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
            self.refuse("probabilities", "True or False", self.probabilities)
        whole = isinstance(index, int) and not isinstance(index, bool) and abs(index) < 2**62
        if index is not None and not whole:
            self.refuse("ignore_index", "an integer", index)
        if index is not None and self.probabilities:
            self.refuse("ignore_index", "left out with probabilities", index)

    @property
    def has_defaults(self) -> bool:
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
