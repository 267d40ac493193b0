"""Which parameters are trained: patterns of their names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

Patterns = str | Sequence[str] | None
"""As of the shell (`fnmatch`), joined by commas or in a list."""

_NEAREST = 3


def patterns(option: str, given: Patterns) -> tuple[str, ...]:
    """The patterns of an option, () where it was not given.

    Raises ValueError for an option without any, TypeError for another type.
    """
    if given is None:
        return ()
    parts: list[Any] = [given]
    if isinstance(given, Iterable):
        parts = given.split(",") if isinstance(given, str) else list(given)
    if not all(isinstance(part, str) for part in parts):
        raise TypeError(f"{option}: expected patterns of parameters' names, got {given!r}")
    found = tuple(part.strip() for part in parts if part.strip())
    if not found:
        raise ValueError(f"{option}: expected patterns of parameters' names, got {given!r}")
    return found


@dataclass(frozen=True)
class Choice:
    """A parameter is trained if a pattern of `trainable` matches it, or there is none, and none of
    `freeze` does.

    A pattern stands for parameters, or for layers with all of theirs: `fc` is `fc.weight` too.
    """

    trainable: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()

    @classmethod
    def from_patterns(cls, trainable: Patterns, freeze: Patterns) -> Choice:
        """Of what a user gives; raises as `patterns` does."""
        return cls(patterns("trainable", trainable), patterns("freeze", freeze))

    def trains(self, *names: str) -> bool:
        """Whether a parameter of these names, its own and the model's, is trained."""
        chosen = not self.trainable or any(_matches(p, names) for p in self.trainable)
        return chosen and not any(_matches(p, names) for p in self.freeze)

    def of_names(self, model: str, names: Mapping[str, str]) -> tuple[str, ...]:
        """The parameters that are trained, of all that can be: own name -> the model's.

        Raises ValueError for a pattern that matches none, naming what is near it, and where none
        is left.
        """
        for option in ("trainable", "freeze"):
            for pattern in getattr(self, option):
                if not any(_matches(pattern, pair) for pair in names.items()):
                    raise ValueError(
                        f"{model}: {option}={pattern!r} matches no parameter;"
                        f" {_near(pattern, names.values())}"
                    )
        found = tuple(name for name, known in names.items() if self.trains(name, known))
        if not found:
            raise ValueError(
                f"{model}: no parameter is left to train: trainable={_joined(self.trainable)},"
                f" freeze={_joined(self.freeze)}"
            )
        return found


def _joined(some: tuple[str, ...]) -> str:
    return repr(",".join(some))


def _matches(pattern: str, names: Iterable[str]) -> bool:
    forms = (pattern, f"{pattern}.*", f"{pattern}/*")
    return any(fnmatchcase(name, form) for name in names for form in forms)


def _near(pattern: str, names: Iterable[str]) -> str:
    """What there is that resembles a pattern: parameters and layers."""
    known: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        known.update(dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1)))
    word = pattern.strip("*?. ")
    close = difflib.get_close_matches(word, known, n=_NEAREST, cutoff=0.5)
    return (
        f"near it: {', '.join(close)}"
        if close
        else f"there are {', '.join([*known][:_NEAREST])}, …"
    )
