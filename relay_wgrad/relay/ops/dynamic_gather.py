"""Reads by index from tensors whose sizes only the run knows, as one kernel each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from .runtime_sizes import number


def element(x: Any, place: Sequence[Any]) -> Any:
    """An element: indices below zero count from the end, what is outside is the nearest.

    Of a tensor without elements it is 0.
    """
    held, some = [], tirx.const(True, "bool")
    for index, size in zip(place, x.shape, strict=True):
        k = index.astype("int64")
        k = tirx.Select(k < 0, k + size, k)
        held.append(tirx.max(tirx.min(k, number(0) + size - 1), number(0)))
        some = tirx.all(some, size > 0)
    return tirx.if_then_else(some, x[tuple(held)], tirx.const(0, x.dtype))


def along(x: Any, indices: Any, axis: int) -> Any:
    """`gather`."""
    return te.compute(indices.shape, lambda *i: element(x, [*i[:axis], indices[i], *i[axis + 1 :]]))


def rows(x: Any, indices: Any, batch: int) -> Any:
    """`gather_nd`."""
    count, own = int(indices.shape[0]), len(indices.shape) - 1

    def at(*i: Any) -> Any:
        places = [(c, *i[:own]) for c in range(count)]
        chosen = [indices[place] for place in places]
        return element(x, [*i[:batch], *chosen, *i[own:]])

    return te.compute([*indices.shape[1:], *x.shape[batch + count :]], at)


def chosen(x: Any, indices: Sequence[Any], shape: Sequence[Any]) -> Any:
    """`adv_index`; `shape` is that of all indices together, which may have to be repeated."""

    def read(index: Any, i: Sequence[Any]) -> Any:
        near = i[len(i) - len(index.shape) :]
        sizes = zip((k.astype("int64") for k in near), index.shape, strict=True)
        return index[tuple(tirx.Select(size == 1, number(0), k) for k, size in sizes)]

    def at(*i: Any) -> Any:
        own = i[: len(shape)]
        return element(x, [*(read(index, own) for index in indices), *i[len(shape) :]])

    return te.compute([*shape, *x.shape[len(indices) :]], at)
