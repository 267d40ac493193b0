"""Options of `train` that say how parameters are updated, and for how long."""

from __future__ import annotations

import argparse
from typing import Any

from ..training.schedules import SCHEDULES
from ..training.update import DECAYS, Update
from . import arguments

_NAMES = ("weight_decay", "decay", "clip_norm", "clip_value", "schedule", "ema")


def add_update(parser: argparse.ArgumentParser) -> None:
    """Those of `relay_wgrad.training.Update`; by default, or with --resume the saved ones."""
    group = parser.add_argument_group(
        "how parameters are updated (with --resume by default as they were)"
    )
    group.add_argument("--weight-decay", type=arguments.rate, default=None, metavar="PART",
                       help="adds so much of a parameter to its gradient; of adamw the learning"
                            " rate's part of it is taken from the parameter")  # fmt: skip
    group.add_argument("--decay", choices=DECAYS, default=None,
                       help="weights: neither biases nor norms' parameters decay, by default;"
                            " all: they do")  # fmt: skip
    group.add_argument("--clip-norm", type=arguments.rate, default=None, metavar="NORM",
                       help="scale all gradients down to this norm")  # fmt: skip
    group.add_argument("--clip-value", type=arguments.rate, default=None, metavar="VALUE",
                       help="clip each gradient's values")  # fmt: skip
    group.add_argument("--schedule", type=schedule, default=None, metavar="SCHEDULE",
                       help=f"of the learning rate: {', '.join(SCHEDULES)}, as"
                            " 'step(every=30, by=0.1)', 'step(at=[60, 80])', 'cosine(warmup=5)',"
                            " 'linear(steps=100, last=0.1)', 'constant(warmup=5)', all in steps;"
                            " steps are by default all of this run's")  # fmt: skip
    group.add_argument("--ema", type=average, default=None, metavar="PART",
                       help="keep a moving average of the parameters, of which this part stays in"
                            " each step; --export writes the averages")  # fmt: skip


def average(text: str) -> float:
    """A part that stays."""
    value = arguments.rate(text)
    if not value < 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to below 1, got {text!r}")
    return value


def schedule(text: str) -> str:
    """The text of a schedule; its steps may be left out."""
    try:
        Update(schedule=_whole(text, 10**9))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("schedule=")) from error
    return text


def _whole(text: str, steps: int) -> str:
    """With `steps`, where a schedule has such and none are given."""
    from ..named import parsed

    name, options = parsed(text)
    known = SCHEDULES.get(name)
    if known is None or "steps" in options or "steps" not in known.__dataclass_fields__:
        return text
    given = ", ".join(f"{key}={value!r}" for key, value in {**options, "steps": steps}.items())
    return f"{name}({given})"


def update_from(args: argparse.Namespace, saved: Update, steps: int) -> Update:
    """What is asked for, else what was saved.

    steps : of the training's end, for a schedule without.
    Raises ValueError for values that do not go together.
    """
    given: dict[str, Any] = {
        name: getattr(args, name) for name in _NAMES if getattr(args, name) is not None
    }
    if "schedule" in given:
        given["schedule"] = _whole(given["schedule"], steps)
    if args.decay is not None and not given.get("weight_decay", saved.weight_decay):
        raise ValueError(f"--decay {args.decay}: there is no --weight-decay")
    return Update(**{**{name: getattr(saved, name) for name in _NAMES}, **given})
