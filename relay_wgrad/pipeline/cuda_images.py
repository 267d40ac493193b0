"""A schedule rule for CUDA: images whose few channels come from planes to stand side by side.

A network's image is one plane for each of its channels, in float32; a step wants them last, in half
precision.  Packs of 16 bytes lie along different axes there, so upstream's fallback gives a thread
one element, two bytes.  Here a thread has so many neighbouring pixels that their channels are whole
packs, and reads those of each plane in packs too.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import SBlockInfo

from .cuda_packs import PACKED, THREADS, loads_and_choices, read_in_packs, reads, vectorized
from .cuda_rule import CudaRule
from .inlining import inlined

FEW = 4  # channels, all of which a thread has
_BYTES = 16


class Images(CudaRule):
    """For a kernel of one element-wise block, whose last axis is few channels, and which reads one
    tensor that has the axis before as its last."""

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None for another kind of function."""
        if not all(info.is_injective() for info in infos):
            return None
        if not 1 < _length(infos[-1].dom()[-1:]) <= FEW:
            return None  # before more work
        rest = inlined(sch, infos)
        if len(rest) != 1:
            return None
        block = rest[0].block_rv
        planes = _planes(sch.get(block))
        *outer, pixel, channel = sch.get_loops(block)
        sizes = [sch.get(loop).extent for loop in (*outer, pixel, channel)]
        if planes is None or not all(isinstance(n, tirx.IntImm) for n in sizes):
            return None
        (written,) = sch.get(block).writes
        at_once = _BYTES // min(map(_bytes, (planes, written.source)))
        # A row of another length than the result's, as of a part, begins between packs.
        if any(n % at_once for n in (int(sizes[-2]), _length(planes.shape[-1:]))):
            return None
        read, *_ = read_in_packs(sch, block, [planes])
        copy = sch.cache_write(block, 0, "local")
        packs, pixel = sch.split(pixel, [None, at_once])
        count = math.prod(map(int, sizes[:-1])) // at_once
        blocks, thread = sch.split(sch.fuse(*outer, packs), [None, min(THREADS, count)])
        self.bind(sch, blocks, "blockIdx.x")
        self.bind(sch, thread, "threadIdx.x")
        sch.compute_at(read, thread)
        sch.reverse_compute_at(copy, thread)
        plane = sch.get_loops(read)[-2]
        vectorized(sch, read, at_once)
        # Pixels and channels of a thread are neighbours in memory.
        every = sch.fuse(*sch.get_loops(copy)[-2:])
        several, one = sch.split(every, [None, _BYTES // _bytes(written.source)])
        sch.vectorize(one)
        for loop in (plane, pixel, channel, several):
            sch.unroll(loop)
        return sch


def _planes(block: Any) -> Any:
    """The tensor that is read along the axis before the last one of what a block writes; None for
    another kind of block."""
    if len(block.writes) != 1 or str(block.writes[0].source.dtype) not in PACKED:
        return None
    *_, pixel, channel = (region.min for region in block.writes[0].region)
    if not isinstance(pixel, tirx.Var) or not isinstance(channel, tirx.Var):
        return None
    loads, choices = loads_and_choices(block.body)
    found = [load for load in loads if any(reads(index, pixel) for index in load.indices)]
    if len(found) != 1 or any(reads(choice, pixel) for choice in choices):
        return None
    (load,) = found
    *others, last = load.indices
    along = isinstance(last, tirx.Var) and last.same_as(pixel)
    along = along and not any(reads(index, pixel) for index in others)
    along = along and any(isinstance(i, tirx.Var) and i.same_as(channel) for i in others)
    return load.source if along and str(load.source.dtype) in PACKED else None


def _bytes(buffer: Any) -> int:
    return tvm.DataType(str(buffer.dtype)).bits // 8


def _length(sizes: Any) -> int:
    """The one size; 1 where it is not known, of which there are no packs."""
    (size,) = sizes
    return int(size) if isinstance(size, int | tirx.IntImm) else 1
