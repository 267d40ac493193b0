"""A schedule rule for CUDA: element-wise kernels whose threads read and write 16 bytes at a time.

Upstream's fallback gives a thread one element: of half precision two bytes, so that most of the
requests that a multiprocessor can have on the way carry little, and each element pays for the
division of its index by all axes.  Here a thread has neighbours along the last axis, 16 bytes of
the widest tensor, or 8 or 4 where rows are no packs of 16.  What it reads comes as packs into
registers, and so does its result leave.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm_ffi import structural_equal, structural_walk

from ..ir import CHOICE
from .cuda_rule import CudaRule
from .inlining import inlined

THREADS = 256  # of a block
_BYTES = 16
_SMALL = 8  # a tensor of so many times fewer elements than the result is small
# What TVM has vectors of in CUDA's words, as many as are 16 bytes.
PACKED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


class Packs(CudaRule):
    """For a kernel of element-wise blocks, each element of which comes from the same place of the
    last axis of all that it reads, or does not depend on that place."""

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None for another kind of function."""
        if not all(info.is_injective() for info in infos):
            return None
        rest = inlined(sch, infos)
        taken = [self._scheduled(sch, info.block_rv) for info in rest]
        return sch if taken and all(taken) else None

    def _scheduled(self, sch: Schedule, block: Any) -> bool:
        """Whether a block could be scheduled so."""
        loops, this = sch.get_loops(block), sch.get(block)
        extents = [sch.get(loop).extent for loop in loops]
        packed = packed_reads(this)
        if not loops or packed is None or not all(isinstance(n, tirx.IntImm) for n in extents):
            return False
        written = [w.source for w in this.writes if str(w.source.dtype) in PACKED]
        last, count = int(extents[-1]), math.prod(map(int, extents))
        # What is much smaller than the result, such as a vector, comes from a cache.
        large = [b for b in packed if _SMALL * math.prod(map(_size, b.shape)) > count]
        lanes = lanes_of([*written, *large], least=_BYTES // 4)
        if lanes < 2 or last % lanes or any(_size(b.shape[-1]) % lanes for b in packed):
            return False
        copies = read_in_packs(sch, block, packed)
        if written:
            copies.append(sch.cache_write(block, 0, "local"))
        *outer, axis = sch.get_loops(block)
        packs, lane = sch.split(axis, [last // lanes, lanes])
        # A thread without a pack writes none, but where there is only one: TVM forgets to ask then.
        threads = min(THREADS, count // lanes)
        of_grid, thread = sch.split(sch.fuse(*outer, packs), [None, threads])
        self.bind(sch, of_grid, "blockIdx.x")
        self.bind(sch, thread, "threadIdx.x")
        for copy in copies[: len(packed)]:
            sch.compute_at(copy, thread)
        for copy in copies[len(packed) :]:
            sch.reverse_compute_at(copy, thread)
        for copy in copies:
            vectorized(sch, copy, lanes)
        sch.unroll(lane)
        return True


def packed_reads(block: Any) -> list[Any] | None:
    """The tensors that a block reads in packs by the last axis of what it writes: `reads_along`."""
    if len(block.writes) != 1 or not block.writes[0].region:
        return None
    *before, written = (r.min for r in block.writes[0].region)
    if not isinstance(written, tirx.Var) or any(reads(index, written) for index in before):
        return None
    return reads_along(block, written)


def reads_along(block: Any, axis: Any) -> list[Any] | None:
    """The tensors that a block reads in packs by an axis, their last one, of dtypes that can be;
    None where it reads another one otherwise than element by element along that axis.

    Each of them it reads in one place only: at the element's own place of the tensor's last axis,
    or a constant number of packs further on.  Whether that is on the tensor, as padding asks, is
    the other axes' matter.
    """
    loads, choices = loads_and_choices(block.body)
    if any(reads(choice, axis) for choice in choices):
        return None
    found: dict[Any, Any] = {}
    for load in loads:
        if load.source.same_as(block.writes[0].source) or not any(
            reads(index, axis) for index in load.indices
        ):
            continue
        *others, last = load.indices
        offset = tvm.sym.Analyzer().simplify(last - axis)
        if not isinstance(offset, tirx.IntImm) or int(offset) % _aligned(load.source):
            return None
        if any(reads(index, axis) for index in others):
            return None
        known = found.setdefault(load.source, load)
        if not all(
            structural_equal(a, b) for a, b in zip(known.indices, load.indices, strict=True)
        ):
            return None
    return [buffer for buffer in found if str(buffer.dtype) in PACKED]


def lanes_of(buffers: list[Any], least: int = _BYTES) -> int:
    """How many neighbours are 16 bytes of the widest tensor; 1 where rows are no such packs.

    least : bytes of a pack, for rows that are packs of a half or a quarter of 16 alone.
    """
    if not buffers:
        return 1
    widest = max(tvm.DataType(str(buffer.dtype)).bits // 8 for buffer in buffers)
    rows = [_size(buffer.shape[-1]) for buffer in buffers]
    size = _BYTES
    while size >= max(least, widest):
        if all(n > 0 and n % (size // widest) == 0 for n in rows):
            return size // widest
        size //= 2
    return 1


def read_in_packs(sch: Schedule, block: Any, buffers: list[Any]) -> list[Any]:
    """Copies of tensors in registers, which a schedule has still to place and to vectorize."""
    this = sch.get(block)
    sources = [region.source for region in this.reads]
    found, choices = loads_and_choices(this.body)
    loads = {load.source: load for load in found}
    by_place = not all(loads_and_choices(choice)[0] for choice in choices)
    copies = []
    for buffer in buffers:
        at, indices = sources.index(buffer), loads[buffer].indices
        # What a condition on a place asks, as padding does, may be none of the tensor: TVM keeps a
        # copy of the tensor's own axes on it.
        if by_place or all(isinstance(index, tirx.Var | tirx.IntImm) for index in indices):
            copies.append(sch.cache_read(block, at, "local", [block]))
            continue
        # Of a tensor that is read by another shape the copy has the block's axes: of sums of these
        # TVM does not see that a thread reads one row, and then all between the first and the last
        # are its registers.
        places = [
            i for i, each in enumerate(this.iter_vars)
            if any(reads(index, each.var) for index in indices)
        ]  # fmt: skip
        own = _chosen(len(this.iter_vars), places)
        copies.append(sch.reindex_cache_read(block, at, "local", own))
    return copies


def _chosen(count: int, places: list[int]) -> tirx.IndexMap:
    """Of so many axes some."""

    def choose(*axes: Any) -> list[Any]:
        return [axes[i] for i in places]

    return tirx.IndexMap.from_func(choose, ndim=count)


def vectorized(sch: Schedule, copy: Any, lanes: int) -> None:
    """The last loop of a copy, of so many lanes, as accesses of 16 bytes at most."""
    most = _aligned(sch.get(copy).writes[0].source)
    loop = sch.get_loops(copy)[-1]
    if lanes > most:
        several, loop = sch.split(loop, [None, most])
        sch.unroll(several)
    sch.vectorize(loop)


def _size(length: Any) -> int:
    """A tensor's length along an axis; 0 where it is not known."""
    return int(length) if isinstance(length, tirx.IntImm) else 0


def _aligned(buffer: Any) -> int:
    """How many of a tensor's elements are 16 bytes."""
    return _BYTES * 8 // max(8, tvm.DataType(str(buffer.dtype)).bits)


def loads_and_choices(body: Any) -> tuple[list[Any], list[Any]]:
    """Of a block's body: what reads a tensor, and the conditions under which it does."""
    loads: list[Any] = []
    choices: list[Any] = []

    def call(node: Any) -> None:
        if getattr(node.op, "name", "") == CHOICE:
            choices.append(node.args[0])

    structural_walk(body, [(TensorLoad, loads.append), (tvm.ir.Call, call)])
    return loads, choices


def reads(index: Any, axis: Any) -> bool:
    """Whether an index depends on an axis."""
    seen: list[Any] = []
    structural_walk(index, (tirx.Var, lambda var: seen.append(var) if var.same_as(axis) else None))
    return bool(seen)
