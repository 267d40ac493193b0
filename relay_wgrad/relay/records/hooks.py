"""What users register for an operator beside its type: gradient, legalization, layout, computation.

Each kind of hook is a `Hooks`: a function by operator name, of which the one with the highest level
counts, as in Relay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_LEVEL = 10  # Relay's
PACKAGE_LEVEL = 0  # of what the package itself registers


class Hooks(Generic[F]):
    """Functions of one kind by operator name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._found: dict[str, dict[int, F]] = {}

    def add(self, op: str, function: F, level: int = DEFAULT_LEVEL) -> None:
        """Registers `function`; one that is there at this level already is replaced."""
        if not callable(function):
            raise TypeError(f"{self.kind} of {op} must be callable, got {function!r}")
        self._found.setdefault(op, {})[level] = function

    def remove(self, op: str, level: int = DEFAULT_LEVEL) -> None:
        """Takes one back; nothing happens if there is none."""
        self._found.get(op, {}).pop(level, None)

    def clear(self, op: str) -> None:
        """Takes all levels back but the package's own."""
        levels = self._found.pop(op, {})
        if PACKAGE_LEVEL in levels:
            self._found[op] = {PACKAGE_LEVEL: levels[PACKAGE_LEVEL]}

    def find(self, op: str) -> F | None:
        """The function that counts, or None."""
        levels = self._found.get(op)
        return levels[max(levels)] if levels else None

    def __contains__(self, op: str) -> bool:
        return bool(self._found.get(op))


# (original call, gradient of its result) -> the gradient of each argument
GRADIENTS: Hooks[Any] = Hooks("the gradient")
# (attrs, arguments, types of the arguments and the result) -> an expression, or None to leave it
LEGALIZE: Hooks[Any] = Hooks("the legalization")
# (attrs, arguments, tinfos, desired layouts) -> an expression
CONVERT_LAYOUT: Hooks[Any] = Hooks("the layout conversion")
# (attrs, TE tensors of the arguments, the result's type) -> list of TE tensors
COMPUTE: Hooks[Any] = Hooks("the computation")
