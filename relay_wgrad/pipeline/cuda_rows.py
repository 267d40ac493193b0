"""A schedule rule for CUDA: sums along the last axis, of many short rows.

Layer normalization's statistics and gradients are such sums, each of a pixel's channels.
Upstream's rule gives a block of threads to a row, most of which have nothing of a row of 96.  Here
as few threads have a row as leave each of them a few packs of 16 bytes, and a block has many rows.
Which threads add what depends on sizes and dtypes alone, so equal inputs give equal bits.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import SBlockInfo

from .cuda_packs import lanes_of, read_in_packs, reads_along, vectorized
from .cuda_reduction import THREADS, UNROLLED, divisor, split_at_sum
from .cuda_rule import CudaRule

MANY = 1024  # rows, at least; fewer are left to a block of threads each
WARP = 32
PACKS = 3  # of a thread, at least, where a row has so many
MOST = 64  # of a thread; longer rows want more threads than a warp


class RowSum(CudaRule):
    """For element-wise blocks and one sum along the last axis of what they make."""

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None for another kind of function."""
        found = split_at_sum(infos)
        if found is None or found[2] or not found[1].dom_kind().endswith("SR"):
            return None
        before, the_sum, _ = found
        for info in before:
            sch.compute_inline(info.block_rv)
        block = the_sum.block_rv
        *kept, length = (int(sch.get(loop).extent) for loop in sch.get_loops(block))
        rows = math.prod(kept)
        packed = _whole_rows(sch.get(block), rows * length)
        lanes = lanes_of(packed)
        packs = length // lanes
        threads = threads_of(packs)
        if lanes < 2 or length % lanes or rows < MANY or threads < 2 or packs > threads * MOST:
            return None
        reads = read_in_packs(sch, block, packed)
        *spatial, summed = sch.get_loops(block)
        of_grid, row = sch.split(sch.fuse(*spatial), [None, THREADS // threads])
        pack, thread, lane = sch.split(summed, [packs // threads, threads, lanes])
        sch.reorder(of_grid, row, thread, pack, lane)
        self.bind(sch, of_grid, "blockIdx.x")
        self.bind(sch, row, "threadIdx.y")
        self.bind(sch, thread, "threadIdx.x")
        for read in reads:
            sch.compute_at(read, pack)
            vectorized(sch, read, lanes)
        each = packs // threads
        sch.unroll(sch.split(pack, [None, divisor(each, min(each, UNROLLED))])[1])
        sch.unroll(lane)
        return sch


def threads_of(packs: int) -> int:
    """Threads of a row: a power of two that divides its packs, of a warp at most, so few that each
    has `PACKS` of them."""
    threads = WARP
    while threads > 1 and packs % threads:
        threads //= 2
    while threads > 2 and packs // threads < PACKS:
        threads //= 2
    return threads


def _whole_rows(block: Any, size: int) -> list[Any]:
    """What a sum reads along its axis; [] where none of it is as large as all rows: a product of
    matrices reads each row for many results."""
    packed = reads_along(block, block.iter_vars[-1].var) or []
    sizes = [
        math.prod(int(n) if isinstance(n, tirx.IntImm) else 0 for n in buffer.shape)
        for buffer in packed
    ]
    return packed if size in sizes else []
