"""Walks that nest to any depth, on a list of their own instead of the Python stack."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T", bound=Hashable)


def order(root: Any, below: Callable[[T], Sequence[T]]) -> Iterator[T]:
    """Each node once after those that `below` names for it, which is asked once, on the way down.

    `root` is the last.  Of a circle the edge that closes it does not count.
    """
    seen: set[T] = set()
    stack: list[tuple[T, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif node not in seen:
            seen.add(node)
            if parts := below(node):
                stack.append((node, True))
                stack += [(part, False) for part in reversed(parts) if part not in seen]
            else:
                yield node


def run(steps: Generator[Any, Any, Any]) -> Any:
    """The result of a generator; what it yields are generators, whose results it is sent."""
    stack = [steps]
    result: Any = None
    while stack:
        try:
            stack.append(stack[-1].send(result))
            result = None
        except StopIteration as done:
            stack.pop()
            result = done.value
    return result
