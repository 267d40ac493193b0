"""Writes by index into a tensor whose sizes only the run knows, as one kernel.

An index below zero counts from the end; what would be outside the tensor is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

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
Target = Callable[[Sequence[Any], Any], list[Any]]


def scattered(data: Any, indices: Any, updates: Any, mode: str, target: Target) -> Any:
    """`data` with each of the updates where `target` says, in their order."""

    def kernel(ins: Any, outs: Any) -> Any:
        (old, where, new), (out,) = ins, outs
        with IRBuilder() as builder:
            with T.seq_scope():
                with _loops(data.shape) as place:
                    T.buffer_store(out, tirx.BufferLoad(old, place), place)
                with _loops(updates.shape) as step:
                    # A place's number, then whether it is within the axis.
                    wide = [x.astype("int64") for x in target(step, where)]
                    pairs = list(zip(wide, data.shape, strict=True))
                    held = [tirx.Select(x < 0, x + size, x) for x, size in pairs]
                    fits = [tirx.all(x >= -size, x < size) for x, size in pairs]
                    with T.If(tirx.all(*fits)), T.Then():
                        made = REDUCE[mode](tirx.BufferLoad(out, held), tirx.BufferLoad(new, step))
                        T.buffer_store(out, made, held)
            return builder.get()

    return te.extern(
        [data.shape], [data, indices, updates], kernel, dtype=str(data.dtype), name="scattered"
    )


@contextmanager
def _loops(sizes: Sequence[Any]) -> Iterator[list[Any]]:
    with T.grid(*sizes) as place:
        yield [place] if isinstance(place, tirx.Var) else list(place)
