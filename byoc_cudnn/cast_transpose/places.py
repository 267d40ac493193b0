"""Where a tensor's elements lie in what it is made of by permutations, reshapes, and packs of an
axis that are filled up with zeros or cut.

An axis is a list of digits, from the most significant on, and each is one of the source's: a
reshape cuts digits and puts them together, a permutation reorders axes, and a fill changes how
large a digit may be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .call import Transposition


@dataclass(eq=False)
class _Digit:
    """One of so many values in the source, and in the result."""

    before: int
    after: int

    @property
    def is_filled(self) -> bool:
        return self.before != self.after


class Places:
    """A tensor, at first the source itself."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.source = [_Digit(n, n) for n in sizes if n > 1]
        digits = iter(self.source)
        self.axes = [[next(digits)] if n > 1 else [] for n in sizes]

    def permute(self, axes: Sequence[int]) -> None:
        """Reorders axes."""
        self.axes = [self.axes[axis] for axis in axes]

    def reshape(self, sizes: Sequence[int]) -> bool:
        """Other axes of the same elements; False where a filled digit would be cut."""
        left = self._together()
        made: list[list[_Digit]] = []
        for size in sizes:
            axis: list[_Digit] = []
            while size > 1:
                if not left:
                    return False
                first = left.pop(0)
                if size % first.after:
                    parts = self._cut(first, size)
                    if parts is None:
                        return False
                    first, rest = parts
                    left.insert(0, rest)
                axis.append(first)
                size //= first.after
            made.append(axis)
        self.axes = made
        return not left

    def _together(self) -> list[_Digit]:
        """The digits, those that are side by side before and after as one, filled ones apart."""
        found: list[_Digit] = []
        for digit in (digit for axis in self.axes for digit in axis):
            last = found[-1] if found else digit
            at = self.source.index(last) + 1
            beside = self.source[at : at + 1] == [digit]
            if not beside or last.is_filled or digit.is_filled:
                found.append(digit)
                continue
            found[-1] = _Digit(last.before * digit.before, last.after * digit.after)
            self.source[at - 1 : at + 1] = [found[-1]]
        return found

    def _cut(self, digit: _Digit, size: int) -> tuple[_Digit, _Digit] | None:
        """Two digits in the place of one, the first of `size`."""
        if digit.is_filled or digit.after % size:
            return None
        first, second = _Digit(size, size), _Digit(digit.after // size, digit.after // size)
        at = self.source.index(digit)
        self.source[at : at + 1] = [first, second]
        return first, second

    def resize(self, axis: int, size: int) -> bool:
        """An axis with zeros at its end, or without those at its end; False where it is no digit of
        its own, or has been resized."""
        digits = self.axes[axis]
        if len(digits) != 1 or digits[0].is_filled or size < 2:
            return False
        digits[0].after = size
        return True

    def move(self) -> Transposition | None:
        """All of it as a transposition; None where it is more than one."""
        runs: list[list[_Digit]] = []  # digits side by side before and after, one filled at most
        place = {id(digit): i for i, digit in enumerate(self.source)}
        for digit in (digit for axis in self.axes for digit in axis):
            last = runs[-1] if runs else []
            beside = bool(last) and place[id(digit)] == place[id(last[-1])] + 1
            if beside and not (digit.is_filled and any(one.is_filled for one in last)):
                last.append(digit)
            else:
                runs.append([digit])
        first = [place[id(run[0])] for run in runs]
        order = [sorted(first).index(at) for at in first]
        inner = [run for _, run in sorted(zip(first, runs, strict=True), key=lambda one: one[0])]
        if order == [0, 1]:
            return _of(inner[0], [], inner[1])
        if order in ([], [0]):
            return _of([], [], *(inner or [[]]))
        if order == [1, 0]:
            return _of([], *inner)
        return _of(*inner) if order == [0, 2, 1] else None


def _of(*runs: list[_Digit]) -> Transposition:
    blocks, rows, columns = (math.prod(digit.before for digit in run) for run in runs)
    fills = tuple(map(_fill, runs))
    filled = any(before != after for before, after in fills)
    return Transposition(blocks, rows, columns, fills if filled else ())


def _fill(run: list[_Digit]) -> tuple[int, int]:
    at = next((i for i, digit in enumerate(run) if digit.is_filled), None)
    if at is None:
        return 1, 1
    behind = math.prod(digit.after for digit in run[at + 1 :])
    return run[at].before * behind, run[at].after * behind


def transposition(sizes: Sequence[int], axes: Sequence[int]) -> Transposition | None:
    """What a permutation of a tensor's axes is; None where it is more than a transposition.

    >>> transposition((64, 32, 3, 3), (0, 2, 3, 1))  # OIHW to OHWI
    Transposition(blocks=64, rows=32, columns=9, fills=())
    """
    places = Places(sizes)
    places.permute(axes)
    return places.move()
