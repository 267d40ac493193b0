"""A kernel that makes a tensor also sums it over pixels.

Gradients of activations and of gates are made element by element, and summed next: for a bias all
over again, for a gate of each image.  Apart the sum reads what was just written.  Here both are one
kernel of two results: a thread makes a part of the pixels of a pack of channels, and has their sums
in registers.  What the sum adds is the tensor as it is stored, rounded.

`MadeSums` joins such calls, where `MadeSum` has a schedule for both together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import relax, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.target import Target

from ..graph.walk import variables_of
from ..ir import bytes_of
from ..keys import SCHEDULED
from .cuda_packs import lanes_of, packed_reads, read_in_packs, reads_along, vectorized
from .cuda_reduction import (
    LEAST,
    UNROLLED,
    WANTED,
    WANTED_OF_PACKS,
    ChannelSum,
    divisor,
    divisors,
    is_costly,
    split_at_sum,
)
from .reshapes import only_reshapes
from .targets import cuda_target
from .together import Together, has_sum

SMALL = 1 << 20  # bytes of a tensor that is not worth it
_UNEVEN = math.log(2)  # times as far from what is wanted parts may be that end in another row
_LEAST_UNDER_WAY = 2  # pixels whose loads a thread has under way at once, at least


class MadeSum(ChannelSum):
    """For element-wise blocks, of which one makes a result, and a sum over pixels that reads it."""

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None for another kind of function."""
        try:
            return self._scheduled(sch, infos)
        except ScheduleError:  # of loops that TVM's analysis does not see through
            return None

    def _scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        found = split_at_sum(infos)
        if found is None:
            return None
        before, the_sum, after = found
        results = _results(sch, before)
        if len(results) != 1:
            return None
        (maker,) = results
        for info in before:
            if info is not maker:
                sch.compute_inline(info.block_rv)
        order = _order(sch, maker, the_sum)
        made = packed_reads(sch.get(maker.block_rv))
        if order is None or made is None:
            return None
        block, kept = sch.get(the_sum.block_rv), the_sum.dom_kind().count("S")
        stored = sch.get(maker.block_rv).writes[0].source
        added = reads_along(block, block.iter_vars[kept - 1].var)
        if added is None or stored not in added:
            return None
        others = [b for b in added if b != stored]
        large = _large([*made, *others], stored)
        lanes = lanes_of([stored, *large])
        sizes = [int(n) for n in order]
        images, pixels, channels = sizes[: kept - 1], sizes[kept - 1 : -1], sizes[-1]
        if lanes < 2 or channels % lanes or any(_last(b) % lanes for b in [*made, *others]):
            return None
        costly = is_costly(sch.get(maker.block_rv).body) or is_costly(block.body)
        parts = parts_of(pixels, math.prod(images) * channels, lanes, costly)
        if parts.number == 1:
            return None
        under_way = max(UNROLLED // max(1, len(large)), _LEAST_UNDER_WAY)
        return self._together(sch, maker.block_rv, the_sum.block_rv, [i.block_rv for i in after],
                              made, others, len(images), parts, lanes, under_way)  # fmt: skip

    def _together(
        self, sch: Schedule, maker: Any, the_sum: Any, after: list[Any], made: list[Any],
        others: list[Any], images: int, parts: Parts, lanes: int, under_way: int,
    ) -> Schedule:  # fmt: skip
        kept = images + 1
        loops = sch.get_loops(the_sum)
        channels = math.prod(int(sch.get(loop).extent) for loop in loops[:kept])
        ahead, _ = parts.of(sch, list(loops[kept:]))
        first = sch.rfactor(_fused(sch, ahead), 0)
        copies = read_in_packs(sch, maker, made)
        out = sch.cache_write(maker, 0, "local", [first])
        sums = sch.cache_write(first, 0, "local")
        *places, channel = sch.get_loops(maker)
        ahead, behind = parts.of(sch, places[images:])
        pack, lane = sch.split(channel, [None, lanes])
        ahead = [*places[:images], *ahead, pack]
        sch.reorder(*ahead, *behind, lane)
        length = int(sch.get(behind[-1]).extent)
        # Sums begin in the loop, by a choice: TVM cannot tell any more that it could be before it.
        together = divisor(length, min(length, under_way))
        if together == 1 and length < 2 * under_way:
            together = length
        _, inner = sch.split(behind[-1], [None, together])
        sch.reverse_compute_at(first, inner)
        copies += read_in_packs(sch, first, others)
        for copy in copies:
            sch.compute_at(copy, inner)
        sch.reverse_compute_at(out, inner)
        sch.reverse_compute_at(sums, pack)
        for copy in (*copies, out, sums):
            vectorized(sch, copy, lanes)
        sch.unroll(inner)
        for block in (maker, first):
            sch.unroll(sch.get_loops(block)[-1])
        self.spread(sch, _fused(sch, ahead))
        self.whole(sch, the_sum, parts.number, channels)
        for block in after:
            self.spread(sch, sch.fuse(*sch.get_loops(block)))
        return sch


class Parts(NamedTuple):
    """How pixels are cut: an axis into so many pieces, with all axes before it wholly.

    axis : None, if all axes are one first; number : of the parts.
    """

    axis: int | None
    pieces: int
    number: int

    def of(self, sch: Schedule, axes: list[Any]) -> tuple[list[Any], list[Any]]:
        """The loops over parts, and those over a part's pixels."""
        if self.axis is None:
            axes = [_fused(sch, axes)]
        axis = self.axis or 0
        outer, rest = sch.split(axes[axis], [self.pieces, None])
        return [*axes[:axis], outer], [rest, *axes[axis + 1 :]]


def parts_of(pixels: Sequence[int], channels: int, lanes: int, costly: bool = False) -> Parts:
    """As near as can be to the number of threads that is wanted.  Where that is hardly further, no
    part ends in another row or image than it begins in: their channels' numbers are read once."""
    total = math.prod(pixels)
    wanted = WANTED if costly else WANTED_OF_PACKS
    most = max(1, min(total // LEAST, wanted * lanes // channels))
    choices, before = [], 1
    for axis, size in enumerate(pixels):
        choices += [Parts(axis, d, before * d) for d in divisors(size)]
        before *= size
    even = {parts.number for parts in choices}
    choices += [Parts(None, d, d) for d in divisors(total) if d not in even]

    def distance(parts: Parts) -> float:
        return abs(math.log(parts.number / most)) + (_UNEVEN if parts.axis is None else 0)

    return min(choices, key=distance)


def _fused(sch: Schedule, loops: list[Any]) -> Any:
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def _results(sch: Schedule, infos: list[SBlockInfo]) -> list[SBlockInfo]:
    """The blocks that write what is no tensor of the kernel's own."""
    (root,) = (sch.get(sch.get_sblock("root")),)
    own = set(root.alloc_buffers)
    return [i for i in infos if any(w.source not in own for w in sch.get(i.block_rv).writes)]


def _order(sch: Schedule, maker: SBlockInfo, the_sum: SBlockInfo) -> list[Any] | None:
    """The lengths of a made tensor's axes, where a sum over some of them reads each element once:
    those that it keeps first, then those that it is over in its order, then the channel."""
    block, summed = sch.get(maker.block_rv), sch.get(the_sum.block_rv)
    stored = block.writes[0]
    region = [r for r in summed.reads if r.source == stored.source]
    if len(block.writes) != 1 or len(region) != 1 or not maker.is_injective():
        return None
    written, read = (
        [index.min for index in r.region if not isinstance(index.min, tirx.IntImm)]
        for r in (stored, region[0])
    )
    kinds = the_sum.dom_kind()
    variables = [v.var for v in summed.iter_vars]
    kept = [v for v, kind in zip(variables, kinds, strict=True) if kind == "S"]
    over = [v for v, kind in zip(variables, kinds, strict=True) if kind == "R"]
    wanted = [*kept[:-1], *over, kept[-1]]
    plain = [v.var for v in block.iter_vars]
    for found, names in ((written, plain), (read, wanted)):
        if len(found) != len(names):
            return None
        if not all(a.same_as(b) for a, b in zip(found, names, strict=True)):
            return None
    extents = [sch.get(loop).extent for loop in sch.get_loops(maker.block_rv)]
    return extents if all(isinstance(n, tirx.IntImm) for n in extents) else None


def _large(buffers: list[Any], stored: Any) -> list[Any]:
    """What is as large as the result; a vector comes from a cache."""
    count = math.prod(map(int, stored.shape))
    return [b for b in buffers if 8 * math.prod(map(int, b.shape)) > count]


def _last(buffer: Any) -> int:
    return int(buffer.shape[-1])


# ---- calls ---------------------------------------------------------------------------------------


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.MadeSums")
class MadeSums:
    """For fused kernels on CUDA, before they are ordered and scheduled."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with calls that make a tensor and sum it."""
        target = cuda_target()
        return mod if target is None else _Joined(mod, target).module()


class _Joined(Together):
    """Calls that make a tensor, each with one that sums it."""

    suffix = "_and_sum"

    def __init__(self, mod: tvm.IRModule, target: Target) -> None:
        super().__init__(mod)
        self.target = target

    def partners(
        self, call: relax.Call, at: int, calls: Mapping[int, relax.Call], place: dict[Any, int]
    ) -> Iterable[int]:
        """Those that make what the call reads."""
        read = dict.fromkeys(variables_of(call.args[1]))
        made = [place[v] for v in read if v in place and bytes_of(v.ty) >= SMALL]
        return [i for i in made if i in calls]

    def may_be(self, first: tirx.PrimFunc, second: tirx.PrimFunc) -> bool:
        """None is scheduled, the second alone has a sum, and the first is more than another shape
        of its operand, which is a view and no kernel."""
        if any(func.attrs and SCHEDULED in func.attrs for func in (first, second)):
            return False
        is_view = only_reshapes(first)
        return not has_sum(first) and has_sum(second) and not is_view

    def kernel(self, both: tirx.PrimFunc) -> tirx.PrimFunc | None:
        """As it is, where there is a schedule for it."""
        return None if MadeSum().apply(both, self.target, False) is None else both
