"""Permutations of axes, and which of them a reshape can carry.

A tensor `t` *in layout p* is stored as `permute_dims(t, p)`: axis i of what is stored is axis p[i]
of `t`.  `t` itself, its axes numbered as the program before conversion numbers them, is called
logical; the identity is "as it was".  Only permutations occur, so any layout can be had from any
other by one `permute_dims`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Perm = tuple[int, ...]


def identity(rank: int) -> Perm:
    return tuple(range(rank))


def is_identity(perm: Perm) -> bool:
    return all(i == a for i, a in enumerate(perm))


def between(src: Perm, dst: Perm) -> Perm:
    """The axes of the `permute_dims` that takes what is stored in layout `src` to `dst`."""
    return tuple(src.index(axis) for axis in dst)


def compose(first: Perm, second: Perm) -> Perm:
    """One permutation for `permute_dims(permute_dims(t, first), second)`."""
    return tuple(first[axis] for axis in second)


def reorder(values: Sequence[Any], perm: Perm) -> list[Any]:
    """Per-axis values of a logical tensor in the order in which `perm` stores the axes."""
    return [values[axis] for axis in perm]


def without(perm: Perm, removed: Sequence[int]) -> Perm:
    """The layout of what is left when axes of the logical tensor are removed."""
    kept = [axis for axis in range(len(perm)) if axis not in removed]
    return tuple(kept.index(axis) for axis in perm if axis in kept)


def aligned(perm: Perm, rank: int) -> tuple[Perm, Perm]:
    """How an operand of lower rank must be stored to broadcast with one in layout `perm`.

    Broadcasting aligns trailing axes.  Returns the operand's own layout and the positions at which
    axes of size 1 have to be inserted into it, since axes that it lacks may come between its own:

    >>> aligned((0, 2, 3, 1), 3)  # (C, 1, 1) beside NHWC: (1, 1, C)
    ((1, 2, 0), ())
    >>> aligned((0, 2, 3, 1), 1)  # (W,) beside NHWC: (W, 1)
    ((0,), (1,))
    """
    lacking = len(perm) - rank
    order = tuple(axis - lacking for axis in perm if axis >= lacking)
    first = next((i for i, axis in enumerate(perm) if axis >= lacking), len(perm))
    inserted = tuple(i for i, axis in enumerate(perm[first:]) if axis < lacking)
    return order, inserted


# ---- reshapes --------------------------------------------------------------------------------

Group = tuple[tuple[int, ...], tuple[int, ...]]


def is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _factors(size: Any) -> tuple[int, list[str]]:
    """A size as a number times symbols; what is no product counts as one symbol."""
    return (size, []) if isinstance(size, int) else (1, [str(size)])


def _inside(part: list[str], whole: list[str]) -> bool:
    rest = list(whole)
    for symbol in part:
        if symbol not in rest:
            return False
        rest.remove(symbol)
    return True


def groups_of(src: Sequence[Any], dst: Sequence[Any]) -> list[Group]:
    """The smallest runs of axes that a reshape from `src` to `dst` maps to each other.

    Axes of size 1 belong to none.  What cannot be told apart, as with symbolic products, falls
    into one run.

    >>> groups_of((8, 6, 5, 5), (8, 2, 3, 25))
    [((0,), (0,)), ((1,), (1, 2)), ((2, 3), (3,))]
    """
    left = [i for i, size in enumerate(src) if not is_one(size)]
    right = [i for i, size in enumerate(dst) if not is_one(size)]
    out: list[Group] = []
    i = j = 0
    while i < len(left) and j < len(right):
        i0, j0 = i, j
        a, sa = _factors(src[left[i]])
        b, sb = _factors(dst[right[j]])
        i, j = i + 1, j + 1
        while not (a == b and sorted(sa) == sorted(sb)):
            # Extend a side whose product is provably a part of the other's.
            if i < len(left) and _inside(sa, sb) and (a < b or len(sa) < len(sb)):
                n, s = _factors(src[left[i]])
                a, sa, i = a * n, sa + s, i + 1
            elif j < len(right) and _inside(sb, sa) and (b < a or len(sb) < len(sa)):
                n, s = _factors(dst[right[j]])
                b, sb, j = b * n, sb + s, j + 1
            else:
                i, j = len(left), len(right)
                break
        out.append((tuple(left[i0:i]), tuple(right[j0:j])))
    if i < len(left) or j < len(right):  # sizes that do not match: nothing is known
        return [(tuple(left), tuple(right))]
    return out


def carried(
    groups: list[Group], side: int, perm: Perm, sizes: Sequence[Any], hint: Perm | None
) -> Perm | None:
    """The layout on a reshape's other side for which what is stored stays a plain reshape.

    `side` is 0 when `perm` is the operand's layout, 1 when it is the result's; `sizes` are the
    other side's.  None where `perm` takes a run of axes apart.  Axes of size 1 may stand anywhere:
    as in `hint` if that fits, else behind the axis that they follow logically.
    """
    where = {axis: n for n, group in enumerate(groups) for axis in group[side]}
    stored = [axis for axis in perm if axis in where]
    order: list[int] = []
    for axis in stored:
        if not order or order[-1] != where[axis]:
            order.append(where[axis])
    if [axis for n in order for axis in groups[n][side]] != stored or len(order) != len(groups):
        return None
    other = [axis for n in order for axis in groups[n][1 - side]]
    if hint is not None and [axis for axis in hint if axis in other] == other:
        return hint
    for axis in range(len(sizes)):
        if axis not in other:
            other.insert(other.index(axis - 1) + 1 if axis > 0 else 0, axis)
    return tuple(other)


def keeps_memory(perm: Perm, sizes: Sequence[Any]) -> bool:
    """Whether a permutation moves nothing in memory: axes of size 1 aside, it keeps the order."""
    moved = [axis for axis in perm if not is_one(sizes[axis])]
    return moved == sorted(moved)
