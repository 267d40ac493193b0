"""`Update`: clipping, decay, averages and accumulation beside the optimizer's rule.

Trainer(graph, optimizer="adamw", update=Update(weight_decay=0.05, clip_norm=1.0,
        schedule="cosine(steps=1000, warmup=50)", ema=0.999))
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from tvm import relax

from ..argument_types import check_type
from ..frontend import InputSpec, TrainingGraph
from ..frontend.graph import TRAINING_GRAPH
from .options import DECAYS
from .schedules import Constant, Schedule, is_between, is_count, schedule_of

_MOST = math.nextafter(math.inf, 0)
_BATCHES = 1 << 20


@dataclass(frozen=True)
class Update:
    """How a step updates.

    weight_decay : of `sgd`, `momentum` and `adam` times the parameter is added to its gradient; of
        `adamw` the rate's part of it is taken from the parameter.
    decay : what decays: "weights", parameters of two axes or more, and so neither biases nor
        norms' scales and shifts; or "all".
    clip_norm : the largest norm of all gradients together; larger ones are scaled down to it, as
        `torch.nn.utils.clip_grad_norm_` does.
    clip_value : the largest value of a gradient, either sign; after `clip_norm`, before the decay.
    schedule : of the learning rate, by the steps so far, with `accumulate` by updates
        (`relay_wgrad.training.schedules`).
    accumulate : batches whose gradients' mean an update takes: parameters move after each so many
        steps, running statistics in each.
    ema : the part of a moving average of the trained parameters that stays in each update; None for
        no average.

    Raises ValueError for a value that is senseless, naming the option.
    """

    weight_decay: float = 0.0
    decay: str = "weights"
    clip_norm: float | None = None
    clip_value: float | None = None
    schedule: str | Schedule = field(default_factory=Constant)
    ema: float | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", schedule_of(self.schedule))
        if not is_between(self.weight_decay, 0, _MOST):
            self._refuse("weight_decay", "a number from 0 on")
        if self.decay not in DECAYS:
            self._refuse("decay", " or ".join(DECAYS))
        for name in ("clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is not None and not (is_between(value, 0, _MOST) and value > 0):
                self._refuse(name, "a positive number")
        if not is_count(self.accumulate, 1) or self.accumulate > _BATCHES:
            self._refuse("accumulate", f"an integer from 1 to {_BATCHES}")
        if self.ema is not None and not (is_between(self.ema, 0, 1) and self.ema < 1):
            self._refuse("ema", "from 0 to below 1")

    def _refuse(self, name: str, rule: str) -> None:
        raise ValueError(f"update: {name} must be {rule}, got {getattr(self, name)!r}")

    def decayed(self, graph: TrainingGraph) -> tuple[bool, ...]:
        """Of each trained parameter, whether it decays."""
        return tuple(
            bool(self.weight_decay) and (self.decay == "all" or graph.params[name].ndim > 1)
            for name in graph.trainable
        )

    def rate(self, lr: float, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        assert isinstance(self.schedule, Schedule)
        return lr * self.schedule.factor(step // self.accumulate)

    def stands(self, lr: float, step: int) -> str:
        """That a schedule lets nothing be learned at a step, nor later; "" where it does."""
        if not lr or self.rate(lr, step):
            return ""
        return (
            f"schedule={self.schedule} is over: from step {step} on, counted from 0, the learning"
            " rate is 0 and parameters stay as they are; a training that goes on needs another"
            " schedule, such as constant or one of more steps"
        )

    def text(self) -> str:
        """For a state file: what is not the default."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        given["schedule"] = str(self.schedule)
        default = {**vars(Update()), "schedule": "constant"}
        return json.dumps({k: v for k, v in given.items() if v != default[k]}, sort_keys=True)


def checked(graph: Any, update: Any, seed: Any) -> Update:
    """The update of a trainer, None for the default one.

    Raises TypeError for another type of one of them, ValueError for a seed below 0.
    """
    wanted = (
        ("graph", graph, TrainingGraph, TRAINING_GRAPH),
        ("update", update, (Update, type(None)), "an Update"),
        ("seed", seed, (int, np.integer), "an integer of at least 0"),
    )
    for name, value, types, rule in wanted:
        check_type(f"Trainer: {name}", value, types, rule)
    if seed < 0:
        raise ValueError(f"Trainer: seed must be an integer of at least 0, got {seed}")
    return Update() if update is None else update


def update_of(text: str) -> Update:
    """Of a state file's text.  Raises ValueError for another's."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    names = {f.name for f in fields(Update)}
    if not isinstance(given, dict) or not set(given) <= names:
        raise ValueError(f"{text!r:.200} is no update's options, {', '.join(sorted(names))}")
    try:
        return Update(**given)
    except TypeError as error:
        raise ValueError(f"{text!r:.200}: {error}") from error


RATES = "rates"
"""The last input of a step: the learning rate, and what gradients are multiplied by.  Where
gradients are accumulated also whether it is the first, and the last, of so many."""


def rates_type(update: Update, dtype: str) -> relax.TensorType:
    """Its type."""
    return relax.TensorType((2 if update.accumulate == 1 else 4,), dtype)


def rates_spec(graph: TrainingGraph, update: Update) -> InputSpec:
    """The input that a step has besides the graph's."""
    shape = tuple(int(n) for n in rates_type(update, graph.dtype).shape.values)
    return InputSpec(RATES, RATES, shape, graph.dtype)


def rates(graph: TrainingGraph, update: Update, lr: float, step: int) -> Any:
    """Its value for a step, counted from 0."""
    values: list[float] = [update.rate(lr, step), 1.0]
    if update.accumulate > 1:
        place = step % update.accumulate
        values += [place == 0, place == update.accumulate - 1]
    return np.array(values, graph.dtype)
