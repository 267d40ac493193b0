"""A schedule rule for CUDA: tensors that are joined, 16 bytes at a time.

Which tensor an element comes from is asked for each element by TVM's kernel, and so is its index.
Where they end between packs of 16 bytes it is the same for a whole pack: asked once, by the
number of the pack.  Upstream's fallback gives each thread one element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm_ffi import structural_map, structural_walk

from ..ir import CHOICE
from .cuda_packs import (
    PACKED,
    THREADS,
    lanes_of,
    loads_and_choices,
    reads,
    vectorized,
)
from .cuda_rule import CudaRule
from .inlining import inlined


class Joins(CudaRule):
    """For a kernel that is one block, each of whose elements is that of one of several tensors, or
    computed of it, as where a bias is added to one of them."""

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None for another kind of function."""
        if not all(info.is_injective() for info in infos):
            return None
        if not any(loads_and_choices(sch.get(info.block_rv).body)[1] for info in infos):
            return None  # before more work
        rest = inlined(sch, infos)
        parts = _parts(sch.get(rest[0].block_rv)) if len(rest) == 1 else []
        if not parts:
            return None
        block = rest[0].block_rv
        moves = all(isinstance(part, TensorLoad) for part in parts)
        extents = [sch.get(loop).extent for loop in sch.get_loops(block)]
        regions = [*sch.get(block).writes, *(sch.get(block).reads if moves else ())]
        buffers = [region.source for region in regions]
        if any(str(buffer.dtype) not in PACKED for buffer in buffers):
            return None
        lanes = lanes_of(buffers)
        if lanes < 2 or not all(isinstance(n, tirx.IntImm) for n in extents):
            return None
        by_pack = tirx.IndexMap.from_func(
            lambda *i: [*i[:-1], i[-1] // lanes, i[-1] % lanes], ndim=len(extents)
        )
        sch.transform_block_layout(block, by_pack)
        name = sch.get(block).name_hint
        ((_, packed),) = sch.mod.functions_items()
        pack, lane = (v.var for v in sch.get(block).iter_vars[-2:])
        rules = [(kind, _by_pack(pack, lane, lanes)) for kind in (tirx.LE, tirx.LT)]
        sch = Schedule(packed.with_body(structural_map(packed.body, rules)))
        block = sch.get_sblock(name)
        loads, choices = loads_and_choices(sch.get(block).body)
        lane = sch.get(block).iter_vars[-1].var
        if any(reads(choice, lane) for choice in choices):
            return None
        if moves and not all(_is_packed(load, lane, lanes) for load in loads):
            return None
        copy = None if moves else sch.cache_write(block, 0, "local")
        *outer, last = sch.get_loops(block)
        count = 1
        for loop in outer:
            count *= int(sch.get(loop).extent)
        of_grid, thread = sch.split(sch.fuse(*outer), [None, min(THREADS, count)])
        self.bind(sch, of_grid, "blockIdx.x")
        self.bind(sch, thread, "threadIdx.x")
        if copy is None:
            sch.vectorize(last)
            return sch
        # What is computed is so element by element, in registers; a cache holds what they read.
        sch.reverse_compute_at(copy, thread)
        vectorized(sch, copy, lanes)
        sch.unroll(last)
        return sch


def _parts(block: Any) -> list[Any]:
    """What an element of a block's result may be, where its place chooses among tensors' elements
    and what is computed of them; else nothing."""
    value = block.body.value if isinstance(block.body, tirx.BufferStore) else None
    found: list[Any] = []
    while isinstance(value, tvm.ir.Call) and value.op.name == CHOICE:
        _, one, value = value.args
        found.append(one)
    found.append(value)
    return found if len(found) > 1 and all(map(_loads, found)) else []


def _loads(value: Any) -> bool:
    seen: list[Any] = []
    structural_walk(value, (TensorLoad, seen.append))
    return bool(seen)


def _by_pack(pack: Any, lane: Any, lanes: int) -> Callable[[Any], Any]:
    """Comparisons of a number with pack · lanes + lane + constant, as comparisons of the pack."""
    place = pack * lanes + lane

    def rule(node: Any) -> Any:
        for first in (True, False):
            number, other = (node.a, node.b) if first else (node.b, node.a)
            if not isinstance(number, tirx.IntImm) or not reads(other, lane):
                continue
            offset = tvm.sym.Analyzer().simplify(other - place)
            # number <= place and place < number change where a pack begins.
            if isinstance(offset, tirx.IntImm) and isinstance(node, tirx.LE) == first:
                whole, rest = divmod(int(number) - int(offset), lanes)
                if rest == 0:
                    bound = tirx.const(whole, str(pack.ty.dtype))
                    return type(node)(*((bound, pack) if first else (pack, bound)))
        return node

    return rule


def _is_packed(load: Any, lane: Any, lanes: int) -> bool:
    """Whether neighbouring lanes read neighbours of a pack, the first at the pack's begin."""
    *others, last = load.indices
    if any(reads(index, lane) for index in others):
        return False
    begin = tvm.sym.Analyzer().simplify(last - lane)
    rest = tvm.sym.Analyzer().simplify(tirx.floormod(begin, tirx.const(lanes, "int64")))
    return not reads(begin, lane) and isinstance(rest, tirx.IntImm) and int(rest) == 0
