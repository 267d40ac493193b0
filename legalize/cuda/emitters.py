"""Writing a GPU kernel as stages, so that it can also be run, thread by thread, on a CPU.

A kernel here is: for each block, a sequence of stages and of loops that all threads of the block
enter together; a barrier lies between stages.  Written that way the same code has two forms.  On
the device a stage runs once in each thread.  Without one (`simulate=True`) it is a serial loop
over the threads, shared memory is an array, and each register array gains an axis for the thread.
Every index, predicate and tile size is then exercised by an ordinary CPU build.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

Expr = Any  # TVM's expressions carry no types that a checker can follow


def int64(value: Expr) -> Expr:
    """Every index is 64-bit as written; TVM narrows those that are proved to fit in 32 bits."""
    return tirx.const(value, "int64") if isinstance(value, int) else value.astype("int64")


def ceildiv(a: Expr, b: Expr) -> Expr:
    return (a + b - 1) // b


def conjunction(guards: Sequence[Expr]) -> Expr:
    """The conjunction; None for no conditions."""
    kept = [g for g in guards if not (isinstance(g, bool) and g)]
    return tirx.all(*kept) if kept else None


def guarded(guards: Sequence[Expr], value: Expr, dtype: str) -> Expr:
    """`value`, or zero without evaluating it where a guard fails."""
    condition = conjunction(guards)
    value = value.astype(dtype)
    if condition is None:
        return value
    return tirx.if_then_else(condition, value, tirx.const(0, dtype))


@contextlib.contextmanager
def when(guards: Sequence[Expr]) -> Iterator[None]:
    """Statements under a condition; unconditional when there is none."""
    condition = conjunction(guards)
    if condition is None:
        yield
        return
    with T.If(condition), T.Then():
        yield


def digits(value: Expr, sizes: Sequence[Expr]) -> list[Expr]:
    """The mixed-radix digits of `value`, the last size being that of the fastest digit."""
    out: list[Expr] = []
    for position, size in reversed(list(enumerate(sizes))):
        if isinstance(size, int) and size == 1:
            out.append(int64(0))
        elif position == 0:
            out.append(value)
        else:
            out.append(value % size)
            value = value // size
    return out[::-1]


class Registers:
    """An array that each thread has for itself."""

    def __init__(self, buffer: Expr, simulated: bool) -> None:
        self._buffer = buffer
        self._simulated = simulated

    def _index(self, thread: Expr, index: Expr) -> list[Expr]:
        return [thread, index] if self._simulated else [index]

    def get(self, thread: Expr, index: Expr) -> Expr:
        return self._buffer[tuple(self._index(thread, index))]

    def set(self, thread: Expr, index: Expr, value: Expr) -> None:
        T.buffer_store(self._buffer, value, self._index(thread, index))


class Kernels:
    """Emits one or more kernels into the PrimFunc that is being built."""

    def __init__(self, simulate: bool) -> None:
        self.simulate = simulate
        self._threads = 0
        self._thread: Expr = None

    @contextlib.contextmanager
    def launch(self, blocks: Expr, threads: int) -> Iterator[Expr]:
        """One kernel; yields the block's number.  Only grid.x is used: it alone goes to 2^31."""
        self._threads = threads
        if self.simulate:
            with T.serial(0, int64(blocks)) as block:
                yield block
            return
        with (
            T.launch_thread(T.env_thread("blockIdx.x", "int64"), int64(blocks)) as block,
            T.launch_thread(T.env_thread("threadIdx.x", "int64"), int64(threads)) as thread,
        ):
            self._thread = thread
            yield block

    @contextlib.contextmanager
    def stage(self) -> Iterator[Expr]:
        """What every thread does between two barriers; yields the thread's number.

        TVM inserts the barriers itself, between conflicting accesses to shared memory.
        """
        if self.simulate:
            with T.serial(0, int64(self._threads)) as thread:
                yield thread
        else:
            yield self._thread

    def shared(self, name: str, count: int, dtype: str) -> Expr:
        return self._alloc(name, (count,), dtype, "global" if self.simulate else "shared")

    def registers(self, name: str, count: int, dtype: str) -> Registers:
        if self.simulate:
            return Registers(self._alloc(name, (self._threads, count), dtype, "global"), True)
        return Registers(self._alloc(name, (count,), dtype, "local"), False)

    def scratch(self, name: str, count: Expr, dtype: str) -> Expr:
        """Device memory that lives from one kernel of the PrimFunc to the next."""
        return IRBuilder.name(name, T.sblock_alloc_buffer((count,), dtype, scope="global"))

    def _alloc(self, name: str, shape: Sequence[int], dtype: str, scope: str) -> Expr:
        return IRBuilder.name(name, T.alloc_buffer(shape, dtype, scope=scope))

    def unrolled(self, count: int) -> Expr:
        """A short loop whose body's registers need constant indices."""
        extent = int64(count)
        return T.serial(0, extent) if self.simulate else T.unroll(0, extent)


@contextlib.contextmanager
def building() -> Iterator[IRBuilder]:
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        yield builder
