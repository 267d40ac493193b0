"""A schedule rule for CUDA: images whose blocks of pixels become channels (`space_to_depth`).

A thread makes as many neighbouring channels as a store of 16 bytes takes, from loads of which all
are under way at once; or all channels of a pixel where those are few, whose places in a block are
known when the code is compiled, where a thread else works out each.  Of more channels two threads
write a sector of memory, 32 bytes, and a warp's are of 16 pixels side by side: of ResNet's first
layer with whole rows a warp's load then is of 3.2 lines of memory, a store of 12, where threads in
the order of memory load from 7.2 and store to 4; there are seven loads to a store.  Upstream's
fallback gives each thread one element.
"""

from __future__ import annotations

from typing import Any

from tvm import DataType, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import SBlockInfo

from ..transform.depth_blocks import IMAGE, READ
from .cuda_rule import CudaRule

THREADS = 256  # of a block
STORED = 128  # bits that a thread stores at once
SECTOR = 2  # threads that store one
FEW = 32  # channels that a thread has all of


class SpaceToDepth(CudaRule):
    """For a kernel that ends in blocks of an image, its channels last."""

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None for another kind of function."""
        names = [info.name for info in infos]
        wanted = len(names) > 1 and names[-2].startswith(READ) and names[-1].startswith(IMAGE)
        if not wanted or not all(info.is_injective() for info in infos):
            return None
        *before, read, last = (info.block_rv for info in infos)
        for block in before:
            sch.compute_inline(block)
        (written,) = sch.get(last).writes
        at_once = STORED // DataType(str(written.source.dtype)).bits
        *outer, channel = sch.get_loops(last)
        count = sch.get(channel).extent
        if not isinstance(count, tirx.IntImm) or int(count) % at_once or len(outer) < 2:
            return None
        copy = sch.cache_write(last, 0, "local")
        if int(count) <= FEW:
            return self._by_pixel(sch, read, last, copy, at_once)
        chunk, one = sch.split(channel, [None, at_once])
        every = int(count) // at_once
        sector = SECTOR if every % SECTOR == 0 else every  # no half of one
        rows, column = outer[:-1], outer[-1]
        chunks, chunk = sch.split(chunk, [None, sector])
        sch.reorder(*rows, chunks, column, chunk)
        blocks, thread = sch.split(sch.fuse(*rows, chunks, column, chunk), [None, THREADS])
        self.bind(sch, blocks, "blockIdx.x")
        self.bind(sch, thread, "threadIdx.x")
        sch.reverse_compute_at(copy, thread)
        sch.compute_at(read, thread)
        sch.set_scope(read, 0, "local")
        sch.vectorize(sch.get_loops(copy)[-1])
        for loop in (one, sch.get_loops(read)[-1]):
            sch.unroll(loop)
        return sch

    def _by_pixel(self, sch: Schedule, read: Any, last: Any, copy: Any, at_once: int) -> Schedule:
        """Each thread has all channels of a pixel, whose places in blocks are known then."""
        *outer, channel = sch.get_loops(last)
        blocks, thread = sch.split(sch.fuse(*outer), [None, THREADS])
        self.bind(sch, blocks, "blockIdx.x")
        self.bind(sch, thread, "threadIdx.x")
        sch.reverse_compute_at(copy, thread)
        sch.compute_at(read, thread)
        sch.set_scope(read, 0, "local")
        several, one = sch.split(sch.get_loops(copy)[-1], [None, at_once])
        sch.vectorize(one)
        for loop in (channel, several, sch.get_loops(read)[-1]):
            sch.unroll(loop)
        return sch
