"""Layouts of single values, by name, for operators whose layout others follow (`AlterOpLayout`).

A layout is a list of axes (`ops.blocked_layouts`); None is one that is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..records.blocked_layouts import Axes, axes_of, factor


@dataclass(frozen=True)
class Layout:
    """(axis, 0), or (axis, block) for a part of one that is split, from the outermost."""

    axes: tuple[tuple[str, int], ...]

    @staticmethod
    def parse(name: str) -> Layout:
        """ValueError for what is no layout."""
        axes: Axes | None = axes_of(name) if name else []
        if axes is None:
            raise ValueError(f"{name!r} is no layout")
        return Layout(tuple(axes))

    @property
    def name(self) -> str:
        """As attributes have it: `NCHW4c`."""
        return "".join(f"{block}{axis.lower()}" if block else axis for axis, block in self.axes)

    def __str__(self) -> str:
        return self.name

    def __len__(self) -> int:
        return len(self.axes)

    @property
    def primal_axes(self) -> str:
        """The axes without blocks."""
        return "".join(axis for axis, block in self.axes if not block)

    def index_of(self, axis: str) -> int:
        """Where an axis, or its outermost part, is; -1 if it is not there."""
        return next((i for i, part in enumerate(self.axes) if part == (axis, 0)), -1)

    def is_split(self, axis: str) -> bool:
        """Whether an axis has blocks."""
        return any(name == axis and block for name, block in self.axes)

    def factor(self, axis: str) -> int:
        """How many of an axis are within its outermost part; 1 if it is whole."""
        return factor(self.axes, axis)

    def last(self, count: int) -> Layout | None:
        """The last axes alone; None if that parts an axis from its blocks."""
        kept = self.axes[len(self.axes) - count :]
        gone = {axis for axis, _ in self.axes[: len(self.axes) - count]}
        return None if any(axis in gone for axis, _ in kept) else Layout(kept)

    def fits(self, other: Layout) -> bool:
        """Whether one can be made of the other."""
        return set(self.primal_axes) == set(other.primal_axes)


Layouts = Sequence[Layout | None]


def like(old: Layout, before: Layout, after: Layout) -> Layout | None:
    """`old` changed as `before` was to become `after`, the axes counted from the last.

    None where their axes are not alike.
    """
    if not old.axes:
        return old
    small, large = sorted((old, before), key=len)
    tail = large.last(len(small))
    if tail is None or not _alike(small, tail):
        return None
    names = {
        b: a for (a, _), (b, _) in zip(reversed(old.axes), reversed(before.axes), strict=False)
    }
    used = {axis for axis, _ in old.axes}
    for axis in reversed(before.primal_axes):
        if axis not in names:
            letters = [axis, *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
            names[axis] = next(letter for letter in letters if letter not in used)
            used.add(names[axis])
    if any(axis not in names for axis in after.primal_axes):
        return None
    return Layout(tuple((names[axis], block) for axis, block in after.axes))


def _alike(a: Layout, b: Layout) -> bool:
    """Whether one is the other with other letters."""
    names: dict[str, str] = {}
    back: dict[str, str] = {}
    for (x, i), (y, j) in zip(a.axes, b.axes, strict=True):
        if i != j or names.setdefault(x, y) != y or back.setdefault(y, x) != x:
            return False
    return True
