"""Parameter updates in Relax: TVM's own SGD, momentum SGD and Adam, checked.

`make_optimizer(…).init(variables)` and then `.get_function()` give a Relax function from
((parameters…), (gradients…), (state…)) to ((new parameters…), (new state…)), and `.state` what to
start from: a count of updates, then what there is for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tvm import relax
from tvm.relax.training.optimizer import SGD, MomentumSGD
from tvm.relax.training.optimizer import Adam as _Adam

from ..argument_types import check_type
from ..frontend import TrainingGraph
from ..frontend.graph import TRAINING_GRAPH
from .options import OPTIMIZERS as NAMES
from .update import Update


class Adam(_Adam):
    """TVM's Adam.  TVM 0.27 itself fails in `init`: it hands NumPy its own type for the dtype."""

    dtype: Any

    def _set_params_and_dtype(self, params: Any) -> None:
        super()._set_params_and_dtype(params)
        self.dtype = str(getattr(self.dtype, "dtype", self.dtype))


def _sgd(lr: float, weight_decay: float, momentum: float = 0.0) -> Any:
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum}: expected a number from 0 to below 1")
    if momentum:
        return MomentumSGD(lr, momentum, weight_decay=weight_decay)
    return SGD(lr, weight_decay=weight_decay)


def _adam(lr: float, weight_decay: float, momentum: float = 0.0) -> Any:
    if momentum:
        raise ValueError("adam has betas of its own: momentum is sgd's")
    return Adam(lr, weight_decay=weight_decay)


class Rule(NamedTuple):
    """An optimizer: what makes it of (lr, weight_decay, momentum), its default rate, how many
    tensors of state it has for each parameter, which come last, and whether weight decay is apart
    from the gradient."""

    make: Callable[..., Any]
    lr: float
    slots: int
    decoupled: bool = False
    counts_for_all: bool = False  # updates, by which it corrects what it has for each parameter


OPTIMIZERS: dict[str, Rule] = dict(
    zip(
        NAMES,
        (
            Rule(_sgd, 1e-3, 0),
            Rule(partial(_sgd, momentum=0.9), 1e-3, 1),
            Rule(_adam, 1e-4, 2, counts_for_all=True),
            Rule(_adam, 1e-4, 2, decoupled=True, counts_for_all=True),
        ),
        strict=True,
    )
)
"""By their names in Python and on the command line.

Small learning rates: all nine bundled networks learn a fixed batch in 10 steps of momentum."""

UNNORMALIZED = 0.1
"""The part of the default rate for networks without batch statistics.

The change of the logits in one step grows with the squared norms of all layers' inputs.  Batch
statistics bound those, whatever the weights; He's weights alone only keep them from layer to layer,
and a rate at which ResNet-50 learns smoothly throws AlexNet's loss above its start."""


class Rate:
    """A trainer's learning rate, before the schedule, which may be set between steps.

    Setting it raises ValueError for what is no finite number of at least 0.
    """

    def __get__(self, trainer: Any, kind: Any = None) -> Any:
        return self if trainer is None else trainer.__dict__["lr"]

    def __set__(self, trainer: Any, value: float) -> None:
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not (is_number and 0 <= value < math.inf):
            raise ValueError(f"lr must be a number of at least 0, got {value!r:.100}")
        trainer.__dict__["lr"] = value


def default_lr(optimizer: str, graph: TrainingGraph) -> float:
    """The learning rate of an optimizer for a network where none is given.

    Raises ValueError for an unknown optimizer, TypeError for what is no graph.
    """
    check_type("default_lr: graph", graph, TrainingGraph, TRAINING_GRAPH)
    return _rule(optimizer).lr * (1.0 if graph.updates else UNNORMALIZED)


def make_optimizer(
    name: str, *, lr: float, momentum: float | None = None, weight_decay: float = 0.0
) -> Any:
    """`sgd` or `momentum` (velocity = momentum·velocity + gradient), or `adam` (0.9 and 0.999).

    `adamw` is `adam`; its weight decay is `Update`'s.
    The momentum is 0 or 0.9, by the name, unless it is given.  Raises ValueError for another name,
    for a learning rate that is not positive, for a momentum outside 0…1, and for one given to Adam.
    """
    rule = _rule(name)
    if rule.decoupled and weight_decay:
        raise ValueError(f"{name}: give weight_decay={weight_decay} to `Update`")
    if not (isinstance(lr, (int, float, np.number)) and 0 < lr < math.inf):
        raise ValueError(f"lr={lr!r}: expected a positive learning rate")
    given = {} if momentum is None else {"momentum": momentum}
    return rule.make(lr, weight_decay, **given)


def optimizer_for(
    graph: TrainingGraph, name: str, lr: float, variables: Sequence[relax.Var] | None = None
) -> Any:
    """An optimizer of a graph's trainable parameters.

    variables : have them by name, with other types than the graph's.
    """
    found = {var.name: var for var in (graph.main.params if variables is None else variables)}
    return make_optimizer(name, lr=lr).init([found[name] for name in graph.trainable])


def initial_state(graph: TrainingGraph, optimizer: str, update: Update | None = None) -> list[Any]:
    """The tensors that an optimizer starts from: as many, and of such shapes, it always has.

    Accumulated gradients come after the optimizer's own, a moving average last.
    """
    update = Update() if update is None else update
    more = [graph.params[name] for name in graph.trainable]
    sums, averages = update.accumulate > 1, update.ema is not None
    return [*optimizer_for(graph, optimizer, 1.0).state, *more * sums, *more * averages]


def owners(graph: TrainingGraph, optimizer: str, update: Update) -> list[str]:
    """The parameter that each tensor of `initial_state` is of, "" for none."""
    names = list(graph.trainable)
    own = state_of(names, optimizer, len(initial_state(graph, optimizer)))
    return [*own, *names * (update.accumulate > 1), *names * (update.ema is not None)]


def sums_in_state(graph: TrainingGraph, optimizer: str, update: Update) -> range:
    """The places of accumulated gradients in the state."""
    own = len(initial_state(graph, optimizer))
    return range(own, own + (len(graph.trainable) if update.accumulate > 1 else 0))


def state_of(trainable: Sequence[str], name: str, count: int) -> list[str]:
    """The parameter that each of an optimizer's `count` tensors is of, "" for none."""
    own = list(trainable) * _rule(name).slots
    return [""] * (count - len(own)) + own


def counts_for_all(name: str) -> bool:
    """Whether what an optimizer has for a parameter is corrected by the count of all updates."""
    return _rule(name).counts_for_all


def is_decoupled(name: str) -> bool:
    """Whether an optimizer's weight decay is apart from the gradient."""
    return _rule(name).decoupled


def _rule(name: str) -> Rule:
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}")
    return OPTIMIZERS[name]
