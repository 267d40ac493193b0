"""A schedule rule for CUDA: sums over pixels for each channel, where channels are last.

Batch normalization's statistics and gradients are such sums, and a bias's gradient is one; for each
image apart, global average pooling and what multiplies channels, squeeze and excitation.
Upstream's rules give a channel to a block, so neighbouring threads read what is far apart.  Here
they read neighbouring channels, each thread a pack of 16 bytes at a time where channels are such
packs.  Each thread sums a part of the pixels in order, and a second kernel adds the parts.  How
many there are depends on sizes and dtypes alone, so equal inputs give equal bits.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from tvm import tirx
from tvm.ir import Call
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm_ffi import structural_walk

from .cuda_packs import lanes_of, packed_reads, read_in_packs, vectorized
from .cuda_rule import CudaRule
from .inlining import inlined

THREADS = 256  # of a block
WANTED = 1 << 17  # threads of the first kernel: half of what an H200 holds at once
WANTED_OF_PACKS = 1 << 16  # with eight packs on the way each
# Functions of many instructions: of a sum with one, arithmetic is the limit, not memory.
COSTLY = ("erf", "exp", "exp2", "log", "log1p", "pow", "sigmoid", "tanh", "sin", "cos")
LEAST = 8  # elements that a thread sums, at least
SHORT, MANY = 64, 1 << 15  # elements of a sum, and sums, of which each thread has one
FEW = 8  # channels of a block that adds parts, at most: 32 bytes, what memory gives at once
UNROLLED = 8  # loads that are under way at once, at most


def part_count(pixels: int, channels: int, lanes: int = 1, costly: bool = False) -> int:
    """Into how many parts a sum over the pixels is cut: a divisor of their number.

    channels : of all images, if each has sums of its own; lanes : channels that a thread has;
    costly : whether what is added takes a function of `COSTLY`.
    """
    wanted = WANTED if lanes == 1 or costly else WANTED_OF_PACKS
    most = max(1, min(pixels // LEAST, wanted * lanes // channels))
    return divisor(pixels, most)


def divisor(number: int, most: int) -> int:
    """The largest divisor that is at most `most`."""
    return max(d for d in divisors(number) if d <= most)


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


class ChannelSum(CudaRule):
    """For element-wise blocks, one sum of that kind, and element-wise blocks over its result."""

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None for another kind of function."""
        found = split_at_sum(infos)
        if found is None or not _reads_channels_last(sch, found[1]):
            return None
        before, the_sum, after = found
        for info in before:
            sch.compute_inline(info.block_rv)
        loops = sch.get_loops(the_sum.block_rv)
        kept = the_sum.dom_kind().count("S")
        channels = math.prod(int(sch.get(loop).extent) for loop in loops[:kept])
        pixel = sch.fuse(*loops[kept:])
        count = int(sch.get(pixel).extent)
        summed = sch.get(the_sum.block_rv)
        packed = packed_reads(summed) or []
        lanes = lanes_of(packed)
        cut = part_count(count, channels, lanes, is_costly(summed.body))
        outer, _ = sch.split(pixel, [cut, count // cut])
        first = sch.rfactor(outer, 0)
        self._parts(sch, first, packed if lanes > 1 else [], lanes)
        self.whole(sch, the_sum.block_rv, cut, channels)
        for info in after:
            self.spread(sch, sch.fuse(*sch.get_loops(info.block_rv)))
        return sch

    def _parts(self, sch: Schedule, block: Any, packed: list[Any], lanes: int) -> None:
        """A thread for each part of each pack of channels: its sums stay in registers."""
        reads = read_in_packs(sch, block, packed)
        copy = sch.cache_write(block, 0, "local")
        *images, channel, part, pixel = sch.get_loops(block)
        pack, lane = sch.split(channel, [None, lanes])
        sch.reorder(*images, part, pack, pixel, lane)
        thread = self.spread(sch, sch.fuse(*images, part, pack))
        sch.reverse_compute_at(copy, thread)
        *_, pixel, lane = sch.get_loops(block)
        length = int(sch.get(pixel).extent)
        outer, inner = sch.split(pixel, [None, divisor(length, min(length, UNROLLED))])
        for read in reads:
            sch.compute_at(read, inner)
            sch.vectorize(sch.get_loops(read)[-1])
        sch.unroll(inner)
        sch.unroll(lane)
        if lanes > 1:
            vectorized(sch, copy, lanes)
        sch.decompose_reduction(block, outer)

    def whole(self, sch: Schedule, block: Any, cut: int, channels: int) -> None:
        """A block of threads for a few channels, whose parts are neighbours in memory, adds them;
        where parts are fewer than channels a thread does."""
        *kept, part = sch.get_loops(block)
        channel = sch.fuse(*kept)
        if cut <= UNROLLED or cut * cut <= channels:
            copy = sch.cache_write(block, 0, "local")
            sch.reverse_compute_at(copy, self.spread(sch, channel))
            return
        few, threads = divisor(channels, FEW), 1
        while threads < min(THREADS // few, cut):
            threads *= 2
        of_grid, neighbour = sch.split(channel, [None, few])
        _, inner = sch.split(part, [None, threads])
        self.bind(sch, of_grid, "blockIdx.x")
        self.bind(sch, neighbour, "threadIdx.x")
        self.bind(sch, inner, "threadIdx.y")

    def spread(self, sch: Schedule, loop: Any) -> Any:
        """The loop over all threads; returns the loop over those of a block."""
        # Of a single one TVM would let all others write theirs over its result.
        outer, inner = sch.split(loop, [None, min(THREADS, int(sch.get(loop).extent))])
        self.bind(sch, outer, "blockIdx.x")
        self.bind(sch, inner, "threadIdx.x")
        return inner


def is_costly(body: Any) -> bool:
    """Whether an expression has one of `COSTLY`."""
    names: set[str] = set()
    structural_walk(
        body, (Call, lambda call: names.add(str(getattr(call.op, "name", "")).rpartition(".")[2]))
    )
    return not names.isdisjoint(COSTLY)


class Registers(CudaRule):
    """Upstream's fallback with sums and extrema in registers until they are done.

    Upstream's are in memory, read and written again for each element: slow, and with a choice as in
    `running < x ? x : running` not safe.  nvcc makes that one load of either address, by the cache
    for what a kernel never writes, which has the value of an earlier kernel.
    """

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None where upstream's fallback has none or nothing is reduced."""
        if not any("R" in info.dom_kind() for info in infos):
            return None
        rest = inlined(sch, infos)
        readers = _readers(sch, rest)
        for i, info in enumerate(rest):
            kinds, block = info.dom_kind(), info.block_rv
            if "O" in kinds:
                return None
            if "R" not in kinds and i > 0 and _joins_before(sch, block, readers):
                continue
            reduces = "R" in kinds
            results = range(len(sch.get(block).writes)) if reduces else ()
            copies = [sch.cache_write(block, i, "local") for i in results]
            loops = sch.get_loops(block)
            spatial, summed = (
                [loop for loop, kind in zip(loops, kinds, strict=True) if kind == wanted]
                for wanted in "SR"
            )
            spatial = spatial or [sch.add_unit_loop(block)]
            sch.reorder(*spatial, *summed)
            fused = sch.fuse(*spatial)
            # A single result has one thread: TVM would let all others write theirs over it.
            extent = sch.get(fused).extent
            alone = isinstance(extent, tirx.IntImm) and int(extent) == 1
            outer, inner = sch.split(fused, [None, 1 if alone else THREADS])
            self.bind(sch, outer, "blockIdx.x")
            self.bind(sch, inner, "threadIdx.x")
            for copy in copies:
                sch.reverse_compute_at(copy, inner)
        return sch


def _readers(sch: Schedule, infos: list[SBlockInfo]) -> Counter[Any]:
    """By how many of the blocks each tensor is read that one of them writes."""
    blocks = [sch.get(info.block_rv) for info in infos]
    made = {region.source for block in blocks for region in block.writes}
    return Counter(
        source for block in blocks for source in made & {region.source for region in block.reads}
    )


def _joins_before(sch: Schedule, block: Any, readers: Counter[Any]) -> bool:
    """Whether an element-wise block became part of what writes the sum that it reads to memory.

    Else the sums are scratch memory of their size, which another kernel reads: of Inception v1's
    average pooling 378 MiB at batch 128.  A sum with other readers stays where it is: upstream
    would take it from them, as a mean of which a variance is made and a running mean.
    """
    if any(readers[region.source] > 1 for region in sch.get(block).reads):
        return False
    try:
        sch.reverse_compute_inline(block)
    except ScheduleError:
        return False
    return True


class Windows(Registers):
    """`Registers` for many results of few elements each, as of pooling: a thread has a result.

    Upstream's rule has a block's threads for each: over a window of 2x2 average pooling takes a
    hundred times what its bytes need (DenseNet-121's three, 19 ms at batch 128 on an H200).
    """

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None for few results or long sums."""
        sums = [info for info in infos if "R" in info.dom_kind()]
        return super().scheduled(sch, infos) if all(map(_is_short, sums)) else None


def _is_short(info: SBlockInfo) -> bool:
    sizes = {"S": 1, "R": 1}
    for kind, extent in zip(info.dom_kind(), info.dom(), strict=True):
        if kind not in sizes or (kind == "R" and not isinstance(extent, int)):
            return False
        # A size that only the run knows may be one.
        sizes[kind] *= extent if isinstance(extent, int) else 1
    return sizes["R"] <= SHORT and sizes["S"] >= MANY


def split_at_sum(
    infos: list[SBlockInfo],
) -> tuple[list[SBlockInfo], SBlockInfo, list[SBlockInfo]] | None:
    """What comes before the sum, the sum, and what comes after; None if it is another function."""
    sums = [i for i, info in enumerate(infos) if "R" in info.dom_kind()]
    if len(sums) != 1:
        return None
    (at,) = sums
    kinds, doms = infos[at].dom_kind(), infos[at].dom()
    kept = kinds.count("S")
    if not 0 < kept < len(kinds) or kinds != "S" * kept + "R" * (len(kinds) - kept):
        return None
    if not all(isinstance(d, int) for d in doms):
        return None
    before, after = infos[:at], infos[at + 1 :]
    if any(not info.is_injective() for info in [*before, *after]):
        return None
    if any(len(info.iters) != kept for info in after):
        return None
    return before, infos[at], after


def _reads_channels_last(sch: Schedule, the_sum: SBlockInfo) -> bool:
    """Whether the sum's channel is the last index of what it reads, and all indices are axes: no
    windows."""
    block = sch.get(the_sum.block_rv)
    variables = [v.var for v in block.iter_vars]
    *_, channel = (v for v, kind in zip(variables, the_sum.dom_kind(), strict=True) if kind == "S")
    regions = [read.region for read in block.reads]
    indices = [index.min for region in regions for index in region]
    plain = all(isinstance(index, tirx.Var | tirx.IntImm) for index in indices)
    alone = len(block.writes) == 1
    return alone and plain and all(r[-1].min.same_as(channel) for r in regions) and bool(regions)
