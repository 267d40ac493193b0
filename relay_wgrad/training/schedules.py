"""Learning rates over the steps of a training.

A schedule gives what the rate is multiplied by at a step, counted from 0.  All have `warmup`: over
so many steps the rate grows in equal parts to the whole; the schedule's own steps are all of the
training's, these among them.

    Update(schedule=Cosine(steps=1000, warmup=50))
    Update(schedule="cosine(steps=1000, warmup=50)")
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..named_options import record_of, text_of


def refuse(name: str, option: str, rule: str, value: Any) -> None:
    """Raises ValueError with all four."""
    raise ValueError(f"{name}: {option} must be {rule}, got {value!r}")


def is_count(value: Any, least: int) -> bool:
    """Whether it is an integer of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_between(value: Any, low: float, high: float) -> bool:
    """Whether it is a number from `low` to `high`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


@dataclass(frozen=True)
class Schedule:
    """warmup : steps over which the rate grows to the whole."""

    name: ClassVar[str] = ""

    warmup: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not is_count(self.warmup, 0):
            refuse(self.name, "warmup", "an integer from 0 on", self.warmup)

    def __str__(self) -> str:
        return text_of(self.name, self)

    def factor(self, step: int) -> float:
        """What the rate is multiplied by."""
        return (step + 1) / self.warmup if step < self.warmup else self.after(step)

    def after(self, step: int) -> float:
        """The same where the warm-up is over."""
        return 1.0


@dataclass(frozen=True)
class Constant(Schedule):
    """The rate as it is."""

    name = "constant"


@dataclass(frozen=True)
class Step(Schedule):
    """Times `by` once more after each `every` steps, or at each step of `at`."""

    name = "step"

    every: int | None = None
    at: Sequence[int] | None = None
    by: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.every is None) == (self.at is None):
            refuse(self.name, "every or at", "given, one of them", (self.every, self.at))
        if self.every is not None and not is_count(self.every, 1):
            refuse(self.name, "every", "an integer of at least 1", self.every)
        if self.at is not None:
            places = list(self.at) if isinstance(self.at, (list, tuple)) else []
            if not places or not all(is_count(v, 1) for v in places) or places != sorted(places):
                refuse(self.name, "at", "growing steps of at least 1", self.at)
            object.__setattr__(self, "at", tuple(places))
        if not is_between(self.by, 0, 1):
            refuse(self.name, "by", "from 0 to 1", self.by)

    def after(self, step: int) -> float:
        times = step // self.every if self.every else sum(step >= at for at in self.at or ())
        return float(self.by**times)


@dataclass(frozen=True)
class Cosine(Schedule):
    """From the whole to `last` of it over `steps`, along half a cosine; then it stays."""

    name = "cosine"

    steps: int = 0
    last: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_count(self.steps, 1):
            refuse(self.name, "steps", "an integer of at least 1", self.steps)
        if self.warmup >= self.steps:
            refuse(self.name, "warmup", f"less than steps, {self.steps}", self.warmup)
        if not is_between(self.last, 0, 1):
            refuse(self.name, "last", "from 0 to 1", self.last)

    def progress(self, step: int) -> float:
        """Of the way from the warm-up's end to the last step, 0 to 1."""
        return min((step - self.warmup) / (self.steps - self.warmup), 1.0)

    def after(self, step: int) -> float:
        return self.last + (1 - self.last) * (1 + math.cos(math.pi * self.progress(step))) / 2


@dataclass(frozen=True)
class Linear(Cosine):
    """From the whole to `last` of it over `steps`, in equal parts; then it stays."""

    name = "linear"

    def after(self, step: int) -> float:
        return 1 + (self.last - 1) * self.progress(step)


SCHEDULES: dict[str, type[Schedule]] = {s.name: s for s in (Constant, Step, Cosine, Linear)}


def schedule_of(given: str | Schedule) -> Schedule:
    """A schedule that a user names, by its record or text.

    Raises ValueError for a name, an option or a value that there is not; TypeError otherwise.
    """
    if isinstance(given, Schedule):
        return given
    if not isinstance(given, str):
        raise TypeError(f"schedule must be a name or a schedule, got {type(given).__name__}")
    return record_of("schedule", given, SCHEDULES)
