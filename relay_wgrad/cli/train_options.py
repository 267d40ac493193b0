"""What `train` makes of the options that say how parameters are updated."""

from __future__ import annotations

import argparse
from typing import Any

from ..named_options import parsed
from ..training.schedules import SCHEDULES
from ..training.update import Update
from . import arguments

_NAMES = ("weight_decay", "decay", "clip_norm", "clip_value", "schedule", "ema", "accumulate")


def with_steps(text: str, steps: int) -> str:
    """With `steps`, where a schedule has such and none are given."""
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
        each = given.get("accumulate", saved.accumulate)
        given["schedule"] = with_steps(given["schedule"], max(steps // each, 1))
    if args.decay is not None and not given.get("weight_decay", saved.weight_decay):
        raise arguments.WrongArgumentsError(f"--decay {args.decay}: there is no --weight-decay")
    return Update(**{**{name: getattr(saved, name) for name in _NAMES}, **given})
