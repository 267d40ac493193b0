"""Writes by index into a tensor whose sizes only the run knows, as one kernel.

An index below zero counts from the end; what would be outside the tensor is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from .loops import kernel, loops, when

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
