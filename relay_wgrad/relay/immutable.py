"""What all classes of nodes share: that they can't be changed, and what stands for a node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import FrozenInstanceError
from typing import Any, TypeVar

import numpy as np

from .expr_methods import ExprMethods

T = TypeVar("T")


class Id:
    """Which variable a Var is: what passes make of one, with its type say, keeps it."""

    __slots__ = ("name_hint",)

    def __init__(self, name_hint: str) -> None:
        self.name_hint = name_hint

    def same_as(self, other: object) -> bool:
        """Whether the other is this one."""
        return self is other

    def __repr__(self) -> str:
        return f"Id({self.name_hint})"


def as_node(value: Any, where: str) -> Any:
    """What stands where a node is wanted: itself, or the tuple that a TupleWrapper wraps."""
    if isinstance(value, ExprMethods):
        return value
    if hasattr(value, "astuple"):
        return value.astuple()
    hint = "; relay.const makes one of it" if isinstance(value, (int, float, np.ndarray)) else ""
    raise TypeError(f"{where} must be a Relay expression, got {value!r}{hint}")


def as_nodes(values: Any, where: str) -> tuple[Any, ...]:
    if isinstance(values, ExprMethods) or not isinstance(values, Iterable):
        raise TypeError(f"{where} must be a list of Relay expressions, got {values!r}")
    return tuple([as_node(value, where) for value in values])


def immutable(node_class: type[T]) -> type[T]:
    """A class of nodes that refuses any assignment with a reason."""

    def refuse(self: object, name: str, value: object = None) -> None:
        raise FrozenInstanceError(
            f"{name}: {self!r} can't be changed, as no node of a program can;"
            " dataclasses.replace makes another"
        )

    node_class.__setattr__ = refuse  # type: ignore[method-assign]
    node_class.__delattr__ = refuse  # type: ignore[method-assign]
    return node_class
