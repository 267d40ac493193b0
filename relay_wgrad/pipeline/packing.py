"""Places in one block of memory for tensors that are alive at different times.

Two tensors may share bytes if one's last use is before the other's first.  The least that any plan
needs is the most that is alive at one step; to find a plan of that size is NP-hard, but for
training steps this one is within a few thousandths of it.  Tensors are placed one after another,
the largest first, or those first that take most bytes for longest, each as low as those that live
beside it leave room.  What then lies beyond the least size goes first in the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ALIGNMENT = 256
"""Bytes that a place is a multiple of: as CUDA's own blocks are."""

_Array = npt.NDArray[np.int64]
_ROUNDS, _NEAR = 8, 1.001


class Lifetime(NamedTuple):
    """A tensor: its bytes, the steps of its first and of its last use, both included."""

    size: int
    first: int
    last: int


class Packing(NamedTuple):
    """Where each tensor begins, in bytes, and the size of the whole."""

    offsets: list[int]
    size: int


def most_alive(tensors: Sequence[Lifetime]) -> int:
    """Bytes alive at once at most, each size a multiple of the alignment: no plan is smaller."""
    if not tensors:
        return 0
    sizes, first, last = _arrays(tensors)
    steps = np.unique(first)  # it grows nowhere else
    born = np.bincount(np.searchsorted(steps, first), sizes, len(steps))
    dead = np.bincount(np.searchsorted(steps, last, "right"), sizes, len(steps) + 1)[:-1]
    return int(np.cumsum(born - dead).max())


def packed(tensors: Sequence[Lifetime]) -> Packing:
    """Places for tensors, such that two that are alive at one step have no byte in common.

    Raises ValueError for a negative size, and a last use before the first.
    """
    for tensor in tensors:
        if tensor.size < 0 or tensor.last < tensor.first:
            raise ValueError(f"packed: no tensor lives so: {tensor}")
    if not tensors:
        return Packing([], 0)
    sizes, first, last = _arrays(tensors)
    least = most_alive(tensors)
    best = Packing([], -1)
    for key in (sizes, sizes * (last - first + 1)):
        order = np.lexsort((first, -key))
        for _ in range(_ROUNDS):
            offsets, size = _placed(order, sizes, first, last)
            if not best.offsets or size < best.size:
                best = Packing([int(x) for x in offsets], size)
            if best.size <= _NEAR * least:
                return best
            over = offsets[order] + sizes[order] > least
            order = np.concatenate((order[over], order[~over]))
    return best


def _arrays(tensors: Sequence[Lifetime]) -> tuple[_Array, _Array, _Array]:
    sizes, first, last = np.array(tensors, np.int64).T
    return -(-sizes // ALIGNMENT) * ALIGNMENT, first, last


def _placed(order: _Array, sizes: _Array, first: _Array, last: _Array) -> tuple[_Array, int]:
    """Each tensor's place, lowest first, and the end of the highest."""
    offsets = np.zeros(len(order), np.int64)
    for count, i in enumerate(order):
        placed = order[:count]
        beside = placed[(first[placed] <= last[i]) & (last[placed] >= first[i])]
        beside = beside[np.argsort(offsets[beside], kind="stable")]
        ends = np.maximum.accumulate(np.append(0, offsets[beside] + sizes[beside]))
        room = offsets[beside] - ends[:-1] >= sizes[i]
        offsets[i] = ends[int(np.argmax(room)) if room.any() else -1]
    return offsets, int((offsets + sizes).max())
