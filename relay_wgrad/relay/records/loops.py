"""Tensor programs that are written as loops, for what is no formula of a place: TE's `extern`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

# (its sizes, its dtype)
Shaped = tuple[Sequence[Any], str]
# (inputs' buffers, outputs' buffers): what a kernel does; `x[i, j]` reads, `x[i, j] = y` writes.
Body = Callable[[list[Any], list[Any]], None]


def kernel(name: str, inputs: Sequence[Any], outputs: Sequence[Shaped], body: Body) -> list[Any]:
    """TE tensors that `body` writes, all of them, of those that it reads."""

    def made(ins: Any, outs: Any) -> Any:
        with IRBuilder() as builder:
            with T.seq_scope():
                body([T.buffer_proxy(x) for x in ins], [T.buffer_proxy(x) for x in outs])
            return builder.get()

    shapes = [tuple(shape) for shape, _ in outputs]
    dtypes = [dtype for _, dtype in outputs]
    out = te.extern(shapes, list(inputs), made, dtype=dtypes, name=name)
    return list(out) if len(outputs) > 1 else [out]


@contextmanager
def loops(*sizes: Any) -> Iterator[Any]:
    """One loop within the other: the place, a number for one size and a tuple for several."""
    with T.grid(*sizes) as place:
        yield place if isinstance(place, tirx.Var) else tuple(place)


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """What is done where that is true."""
    with T.If(condition), T.Then():
        yield


def cell(dtype: str, value: Any) -> Any:
    """A variable, `x[0]`, that begins with a value."""
    made = T.buffer_proxy(T.alloc_buffer((1,), dtype, scope="local"))
    made[0] = tirx.const(value, dtype) if isinstance(value, (int, float, bool)) else value
    return made
