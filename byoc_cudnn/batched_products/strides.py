"""Axes of a view of a tensor, and the matrices that it has: strides where nothing is moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .call import Matrices

Axis = tuple[Any, int]
"""How many there are, a number or a symbol's expression, and from one to the next in elements."""


def whole(sizes: Sequence[Any]) -> list[Axis] | None:
    """A tensor without gaps; None where a size that strides are made of is no number."""
    if not all(isinstance(size, int) for size in sizes[1:]):
        return None
    return [(size, math.prod(sizes[i + 1 :])) for i, size in enumerate(sizes)]


def permuted(axes: Sequence[Axis], order: Sequence[int]) -> list[Axis]:
    return [axes[axis] for axis in order]


def repeated(axes: Sequence[Axis], sizes: Sequence[Any]) -> list[Axis]:
    """Broadcast to these sizes."""
    before: list[Axis] = [(1, 0)] * (len(sizes) - len(axes))
    return [
        (size, 0) if axis[0] == 1 and size != 1 else axis
        for axis, size in zip([*before, *axes], sizes, strict=True)
    ]


def reshaped(axes: Sequence[Axis], sizes: Sequence[Any]) -> list[Axis] | None:
    """Other axes of the same elements in the same order; None where strides cannot say it.

    >>> reshaped([(4, 6), (2, 3), (3, 1)], (8, 3))
    [(8, 3), (3, 1)]
    >>> reshaped([(2, 3), (4, 6), (3, 1)], (8, 3)) is None
    True
    """
    if not all(isinstance(n, int) and n > 0 for n in [*sizes, *(count for count, _ in axes)]):
        return None
    runs = _merged(axes)
    made: list[Axis] = []
    for size in reversed(sizes):
        if size == 1:
            made.append((1, 0))
            continue
        if not runs or runs[-1][0] % size:
            return None
        count, stride = runs.pop()
        made.append((size, stride))
        if count > size:
            runs.append((count // size, stride * size))
    return None if runs else made[::-1]


def _merged(axes: Sequence[Axis]) -> list[Axis]:
    """Axes that follow one another in memory as one."""
    found: list[Axis] = []
    for count, stride in axes:
        if count == 1:
            continue
        if found and isinstance(count, int) and found[-1][1] == stride * count:
            found[-1] = (found[-1][0] * count, stride)
        else:
            found.append((count, stride))
    return found


def matrices(axes: Sequence[Axis], first: int = 0) -> Matrices | None:
    """The matrices of the last two axes; None where no lead and step say where they are.

    first : where the view begins.
    """
    *outer, (rows, down), (columns, across) = axes
    steps = _merged(outer)
    if len(steps) > 1:
        return None
    step = steps[0][1] if steps else 0
    if across == 1 and down >= columns:
        return Matrices(down, step, first=first)
    if down == 1 and across >= rows:
        return Matrices(across, step, turned=True, first=first)
    return None
