"""Walks that nest to any depth: generators on a list of their own, instead of the Python stack."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


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
