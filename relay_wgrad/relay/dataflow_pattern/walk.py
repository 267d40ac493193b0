"""Walks over patterns."""

from __future__ import annotations

from collections.abc import Iterator

from ..ast import Op
from ..iterative_walks import order
from .pattern import (
    AltPattern,
    AttrPattern,
    CallPattern,
    Constrained,
    DFPattern,
    DominatorPattern,
    ExprPattern,
)


def post_order(root: DFPattern) -> Iterator[DFPattern]:
    """Each pattern once, parts before what is made of them."""
    return order(root, lambda pattern: pattern.parts())


def operators(pattern: DFPattern) -> frozenset[str] | None:
    """The operators of which an expression that matches must be a call; None if any will do.

    A quick answer for most nodes of a program: they are not calls of one of these.
    """
    found: set[str] = set()
    stack: list[DFPattern] = [pattern]
    seen: set[DFPattern] = set()
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        if isinstance(at, AltPattern):
            stack += [at.left, at.right]
        elif isinstance(at, Constrained):
            stack.append(at.pattern)
        elif isinstance(at, DominatorPattern):
            stack.append(at.child)
        elif isinstance(at, CallPattern):
            callees = _callees(at.op)
            if callees is None:
                return None
            found |= callees
        else:
            return None
    # `a * b / c` may stand as `a / c * b`, and the other way round.
    return frozenset(found | {"multiply", "divide"} if found & {"multiply", "divide"} else found)


def _callees(pattern: DFPattern) -> set[str] | None:
    """The operators that a pattern of a callee names; None if it names none."""
    found: set[str] = set()
    stack = [pattern]
    while stack:
        at = stack.pop()
        if isinstance(at, AltPattern):
            stack += [at.left, at.right]
        elif isinstance(at, AttrPattern):
            stack.append(at.pattern)
        elif isinstance(at, ExprPattern) and isinstance(at.expr, Op):
            found.add(at.expr.name)
        else:
            return None
    return found
