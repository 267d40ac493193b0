"""Small words for writing loops over flat memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from tvm import DataType, tirx
from tvm.ir import PointerType, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

Expr = Any  # TVM's expressions carry no types that a checker can follow


def ceildiv(a: Expr, b: int) -> Expr:
    return (a + b - 1) // b


def int64(value: Expr) -> Expr:
    """Indices are 64-bit as written; TVM narrows those that are proved to fit in 32 bits."""
    return tirx.const(value, "int64") if isinstance(value, int) else value.astype("int64")


def serial(extent: Expr, start: Expr = 0) -> Any:
    """A loop over [start, extent)."""
    return T.serial(int64(start), int64(extent))


_one_core = ContextVar("one_core", default=False)


@contextlib.contextmanager
def one_core(wanted: bool) -> Iterator[None]:
    """What is built inside runs in the thread that calls it, if wanted: no waking of others."""
    token = _one_core.set(wanted)
    try:
        yield
    finally:
        _one_core.reset(token)


_FEW = 1 << 13  # elements that one core has copied before it has woken the others


def is_worth_waking(count: Expr) -> bool:
    """Whether a pass over so many elements is worth more than the thread that calls the kernel."""
    return not isinstance(count, int) or count > _FEW


@contextlib.contextmanager
def parallel(*sizes: Expr) -> Iterator[list[Expr]]:
    """One parallel loop over a grid; yields its indices.  Sizes of 1 cost nothing.

    TVM gives each thread one run of consecutive iterations, so neighbours share a core's cache.
    Within `one_core` it is a serial loop.
    """
    total = math.prod(sizes)
    loop = serial(total) if _one_core.get() else T.parallel(0, int64(total))
    with loop as task:
        yield digits(task, sizes)


def digits(value: Expr, sizes: Sequence[Expr]) -> list[Expr]:
    """Mixed-radix digits of `value`, bound to variables; the last size's digit is the fastest."""
    out: list[Expr] = []
    for position, size in reversed(list(enumerate(sizes))):
        if isinstance(size, int) and size == 1:
            out.append(0)
        elif all(isinstance(x, int) and x == 1 for x in sizes[:position]):
            out.append(value)
            value = 0
        else:
            out.append(bind(value % size))
            value = bind(value // size)
    return out[::-1]


def bind(value: Expr) -> Expr:
    """Names a value, so that it is computed once."""
    return value if isinstance(value, int) else T.Bind(value)


def opaque(value: Expr) -> Expr:
    """`bind` of a value that TVM's passes should not look into: a remainder within many others
    makes `NarrowDataType` take a minute.  LLVM finds the register."""
    cell = local("cell", 1, "int64")
    T.buffer_store(cell, int64(value), [int64(0)])
    return T.Bind(cell[int64(0)])


@contextlib.contextmanager
def when(condition: Expr) -> Iterator[None]:
    """Statements under a condition; none for True."""
    if isinstance(condition, bool):
        if not condition:
            raise ValueError("a branch that is never taken should not be written")
        yield
        return
    with T.If(condition), T.Then():
        yield


def conjunction(a: Expr, b: Expr) -> Expr:
    """Conjunction of two conditions, either of which may be a plain bool."""
    if a is False or b is False:
        return False
    if a is True or b is True:
        return b if a is True else a
    return tirx.all(a, b)


def vector(start: Expr, lanes: int, stride: Expr = 1) -> Expr:
    """The index of `lanes` elements from `start` on."""
    return int64(start) if lanes == 1 else tirx.Ramp(int64(start), int64(stride), lanes)


def splat(value: Expr, lanes: int) -> Expr:
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def cast(value: Expr, dtype: str, lanes: int) -> Expr:
    """A vector's conversion.

    From bfloat16 it is spelled out: TVM's legalization of bfloat16 overlooks a cast whose value is
    bound to a variable, and then the bits are taken for an integer.
    """
    many = "" if lanes == 1 else f"x{lanes}"
    if str(value.ty).startswith("bfloat16") and dtype != "bfloat16":
        bits = tirx.reinterpret(f"uint16{many}", value).astype(f"uint32{many}")
        value = tirx.reinterpret(f"float32{many}", bits << splat(tirx.const(16, "uint32"), lanes))
    return value.astype(f"{dtype}{many}")


def prefetch(buffer: Expr, at: Expr, *, write: bool = False, level: int = 1) -> None:
    """Asks for a cache line that is to be read, or written, some hundred cycles later: stores that
    miss would commit one by one.  `level`: the cache that it should come into."""
    keep, data = 4 - level, 1
    address = tirx.address_of(buffer[int64(at)])
    T.evaluate(tirx.call_intrin("void", "tirx.prefetch", address, int(write), keep, data))


def head(value: Expr, lanes: int, count: int) -> Expr:
    """The first elements of a vector."""
    if count == lanes:
        return value
    return tirx.Shuffle([value], list(range(count)))


def store_head(target: Expr, place: Expr, sums: Expr, start: Expr, lanes: int, count: int) -> None:
    """Stores the first `count` elements of the vectors that are in `sums` from `start` on."""
    for first in range(0, count, lanes):
        some = min(lanes, count - first)
        value = head(sums[vector(start + first, lanes)], lanes, some)
        T.buffer_store(target, value, [vector(place + first, some)])


def outer(acc: Expr, lanes: int, values: Iterable[Expr], terms: Sequence[Expr]) -> None:
    """Adds the outer product of scalars and vectors to a register tile: a row for each scalar."""
    for i, value in enumerate(values):
        for v, term in enumerate(terms):
            at = vector((i * len(terms) + v) * lanes, lanes)
            T.buffer_store(acc, acc[at] + splat(value, lanes) * term, [at])


def zero(dtype: str, lanes: int = 1) -> Expr:
    return splat(tirx.const(0, dtype), lanes)


def alignment(dtype: str) -> int:
    """What memory is said to be aligned to, in bytes: one element.

    TVM says 64 otherwise, of memory that it allocates rightly so, and marks each access with what
    follows for it.  LLVM 22's loop vectorizer makes one vector of neighbouring accesses and takes
    the mark of the last of them for all (`narrowInterleaveGroups`): for y[2i + 1], y[2i + 2] an
    aligned store of 16 bytes at y[2i + 1], which faults.  Unaligned instructions on aligned memory
    are as fast, so nothing is lost.
    """
    return max(1, int(DataType(dtype).bits) // 8)


def argument(name: str, dtype: str, shape: Sequence[Expr]) -> Expr:
    """A tensor that a kernel is called with."""
    return T.arg(name, T.buffer(shape, dtype, align=alignment(dtype)))


def _allocation(count: Expr, dtype: str, scope: str) -> Expr:
    return T.alloc_buffer((count,), dtype, scope=scope, align=alignment(dtype))


def flat(buffer: Expr, dtype: str, shape: Sequence[Expr]) -> Expr:
    """A one-dimensional name for the memory of an argument."""
    return IRBuilder.name(
        f"{buffer.name}_flat", T.decl_buffer((math.prod(shape),), dtype, data=buffer.data)
    )


def view(buffer: Expr, dtype: str) -> Expr:
    """A buffer's memory as numbers of another dtype: of bits, TVM would compute with bfloat16."""
    bits, other = (int(DataType(str(x)).bits) for x in (buffer.dtype, dtype))
    count = math.prod(buffer.shape) * bits // other
    return IRBuilder.name(
        f"{buffer.name}_{dtype}", T.decl_buffer((count,), dtype, data=buffer.data)
    )


class Scratch:
    """Memory for the duration of the call.

    It is used through second names: TVM analyses every access of an allocation's own name to
    shrink the allocation, which here would take most of the compile time and gain nothing.  But
    where TVM's storage rewriting lets one allocation take the place of another, it overlooks
    accesses by second names.  So `keep` uses all allocations once more, after everything else.
    """

    def __init__(self) -> None:
        self._memories: list[Expr] = []

    def new(self, name: str, count: Expr, dtype: str) -> Expr:
        memory = IRBuilder.name(f"{name}_memory", _allocation(count, dtype, "global"))
        self._memories.append(memory)
        return IRBuilder.name(name, T.decl_buffer((count,), dtype, data=memory.data))

    def keep(self) -> None:
        for memory in self._memories:
            T.buffer_store(memory, tirx.const(0, str(memory.dtype)), [int64(0)])


# Larger arrays come from TVM's workspace: threads may have small stacks.
_STACK_BYTES = 16 << 10


def local(name: str, count: int, dtype: str, align: int = 0) -> Expr:
    """An array of a task; one that is only indexed by constants becomes registers.

    TVM 0.27 takes an allocation of scope "local" from its workspace on a CPU: two calls through a
    pointer for each tile, and registers are stored there.  So a small one is not an allocation.
    A stack gives it the alignment of a word; `align`: bytes, a power of two, where more matters.
    """
    bytes_ = count * (8 if "64" in dtype else 4)
    if bytes_ > _STACK_BYTES:
        memory = IRBuilder.name(f"{name}_memory", _allocation(count, dtype, "local"))
        data = memory.data  # the workspace aligns to 64 bytes
    else:
        pointer = PointerType(PrimType(dtype), "local")
        words = ceildiv(bytes_ + align, 8)
        data = T.Bind(tirx.call_intrin(pointer, "tirx.tvm_stack_alloca", "shape", words))
        if align:
            more = int64(align - 1)
            after = tirx.call_intrin(pointer, "tirx.handle_add_byte_offset", data, more)
            data = T.Bind(tirx.call_llvm_intrin(pointer, "llvm.ptrmask", after, int64(-align)))
    return IRBuilder.name(name, T.decl_buffer((count,), dtype, data=data, scope="local"))
