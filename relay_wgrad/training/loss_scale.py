"""What a step keeps besides tensors: the loss scale and counters, and the rule that moves them.

All of it is one float64 vector, the control, so that a step on a GPU decides by itself whether to
update: it goes from step to step on the device, and the host reads it when it likes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

FIELDS = ("scale", "good_steps", "skipped", "steps", "stopped", "loss", "updates")
"""The control: loss scale; good steps since it changed; steps left out because of a gradient that
was not finite; steps; why nothing moves any more (below); the last step's loss; whether it updated
the parameters."""
AT = {name: index for index, name in enumerate(FIELDS)}

RUNNING, LOSS, GRADIENT = 0, 1, 2
"""`stopped`: not; by a loss that is not finite; by a gradient that is not, at a scale of 1."""

STATIC = 1024.0  # float16's loss scale unless one is given
START, GROWTH = (
    65536.0,
    200,
)  # dynamic: the largest power of two of float16; steps before it doubles


def usable(scale: float) -> bool:
    """Whether a loss scale is a positive number of float32, as compiled code takes it."""
    if not 0 < scale < float(np.finfo("float32").max):
        return False
    with np.errstate(under="ignore"):
        return bool(np.float32(scale) > 0)


def initial_scale(given: float | str | None, dtype: str) -> float | None:
    """The loss scale to start with, None for none."""
    if given is None:
        return STATIC if dtype == "float16" else None
    if given == "dynamic":
        return START
    if isinstance(given, (str, bool)) or not usable(given):
        raise ValueError(
            f"loss_scale must be a positive number or 'dynamic', got {given!r}: compiled code takes"
            " it as float32"
        )
    return float(given)


def control(scale: float | None, good_steps: int, skipped: int, steps: int) -> Any:
    """The control of a training that runs; without a loss scale it is 1."""
    values = [1.0 if scale is None else scale, good_steps, skipped, steps, RUNNING, 0, 0]
    return np.array(values, "float64")


PROGRESS = ("steps", "skipped", "good_steps", "loss_scale")


def progress(trainer: Any, control: Any, dynamic: bool) -> dict[str, Any]:
    """`PROGRESS` by a control on the device; the trainer's own where there is none."""
    given = {name: getattr(trainer, name) for name in PROGRESS}
    if control is None:
        return given
    known = dict(zip(FIELDS, control.numpy().tolist(), strict=True))
    counts = {name: int(known[name]) for name in ("steps", "skipped", "good_steps")}
    return {**given, **counts, **({"loss_scale": known["scale"]} if dynamic else {})}


def next_control(
    before: Any, loss: Any, infinite: Any | None = None, rates: Any | None = None
) -> Any:
    """A tensor expression of the control after a step.

    before : the control.
    loss : the step's, a scalar.
    infinite : of a dynamic scale: how many values of the gradients are not finite, float64.
    rates : of accumulated gradients: its fourth number says whether the step is the last of some;
        the others update nothing and leave the scale.
    """
    most = float(np.finfo(str(loss.dtype)).max)
    one = tirx.const(1.0, "float64")

    def field(name: str) -> Any:
        return before[AT[name]]

    def choose(condition: Any, then: Any, otherwise: Any) -> Any:
        return tirx.Select(condition, _f64(then), _f64(otherwise))

    value = loss()
    # Not `isfinite`: a comparison with NaN is false.
    good_loss = tirx.abs(value) <= tirx.const(most, loss.dtype)
    good = (
        tirx.const(True, "bool") if infinite is None else infinite() <= tirx.const(0.0, "float64")
    )
    last = tirx.const(True, "bool") if rates is None else rates[3] > tirx.const(0.5, rates.dtype)
    good = tirx.Or(good, tirx.Not(last))
    at_one = field("scale") <= one
    fails = choose(good_loss, choose(tirx.Or(good, tirx.Not(at_one)), RUNNING, GRADIENT), LOSS)
    stopped = choose(field("stopped") > 0.0, field("stopped"), fails)
    runs = stopped <= 0.0
    updates = tirx.And(tirx.And(runs, good), last)
    scale, count = field("scale"), field("good_steps")
    if infinite is not None:
        grows = tirx.And(last, count + one >= tirx.const(float(GROWTH), "float64"))
        half = tirx.max(scale * tirx.const(0.5, "float64"), one)
        new_scale = choose(good, choose(grows, scale * tirx.const(2.0, "float64"), scale), half)
        new_count = choose(tirx.And(good, tirx.Not(grows)), count + one, 0)
        counts = tirx.And(runs, last)
        scale, count = choose(counts, new_scale, scale), choose(counts, new_count, count)
    new = {
        "scale": scale,
        "good_steps": count,
        "skipped": field("skipped") + choose(tirx.And(runs, tirx.Not(good)), 1, 0),
        "steps": field("steps") + choose(runs, 1, 0),
        "stopped": stopped,
        "loss": value.astype("float64"),
        "updates": choose(updates, 1, 0),
    }

    def at(i: Any) -> Any:
        found = new[FIELDS[-1]]
        for name in reversed(FIELDS[:-1]):
            found = tirx.Select(i == AT[name], new[name], found)
        return found

    return te.compute((len(FIELDS),), at, name="control")


def _f64(value: Any) -> Any:
    return tirx.const(float(value), "float64") if isinstance(value, (int, float)) else value
