"""Reads and writes by index in tensors whose sizes only the run knows, as one kernel each.

An index below zero counts from the end.  What would be outside the tensor is read from the nearest
element, and is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from .loops import kernel, loops, when
from .runtime_sizes import number

# What is written of what was there and the update.
REDUCE: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "mean": lambda old, new: (old + new) / 2,
    "min": tirx.min,
    "max": tirx.max,
}
# (places of the updates, the indices' buffer) -> the place in data of each, before it is counted
Target = Callable[[tuple[Any, ...], Any], Sequence[Any]]


# ---- reads ---------------------------------------------------------------------------------------


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


def gather(x: Any, indices: Any, axis: int) -> Any:
    """`gather`."""
    return te.compute(indices.shape, lambda *i: element(x, [*i[:axis], indices[i], *i[axis + 1 :]]))


def gather_nd(x: Any, indices: Any, batch: int) -> Any:
    """`gather_nd`."""
    count, own = int(indices.shape[0]), len(indices.shape) - 1

    def at(*i: Any) -> Any:
        places = [(c, *i[:own]) for c in range(count)]
        index = [indices[place] for place in places]
        return element(x, [*i[:batch], *index, *i[own:]])

    return te.compute([*indices.shape[1:], *x.shape[batch + count :]], at)


def adv_index(x: Any, indices: Sequence[Any], shape: Sequence[Any]) -> Any:
    """`adv_index`; `shape` is that of all indices together, which may have to be repeated."""

    def read(index: Any, i: Sequence[Any]) -> Any:
        near = i[len(i) - len(index.shape) :]
        sizes = zip((k.astype("int64") for k in near), index.shape, strict=True)
        return index[tuple(tirx.Select(size == 1, number(0), k) for k, size in sizes)]

    def at(*i: Any) -> Any:
        own = i[: len(shape)]
        return element(x, [*(read(index, own) for index in indices), *i[len(shape) :]])

    return te.compute([*shape, *x.shape[len(indices) :]], at)


# ---- writes --------------------------------------------------------------------------------------


def scattered(data: Any, indices: Any, updates: Any, mode: str, target: Target) -> Any:
    """`data` with each of the updates where `target` says, in their order."""

    def write(ins: list[Any], outs: list[Any]) -> None:
        (old, where, new), (out,) = ins, outs
        with loops(*data.shape) as place:
            out[place] = old[place]
        with loops(*updates.shape) as step:
            wide = [x.astype("int64") for x in target(_tuple(step), where)]
            pairs = list(zip(wide, data.shape, strict=True))
            held = tuple(tirx.Select(x < 0, x + size, x) for x, size in pairs)
            with when(tirx.all(*(tirx.all(x >= -size, x < size) for x, size in pairs))):
                out[held] = REDUCE[mode](out[held], new[step])

    (made,) = kernel("scattered", [data, indices, updates], [(data.shape, str(data.dtype))], write)
    return made


def _tuple(place: Any) -> tuple[Any, ...]:
    return place if isinstance(place, tuple) else (place,)
