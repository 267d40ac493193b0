"""Which blocks of a fused kernel are written into those that read them.

Upstream's `try_inline` takes all it can.  Where each block reads the one before it twice, as a
running maximum does that compares and then chooses, the last one's expression has 2^n terms: a
kernel of the second order of a 3x3 max pooling took a minute and more, one of 5x5 would never end.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tvm import s_tir
from tvm.ir import TensorLoad
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm_ffi import structural_walk

# Elements that all copies of one block's expression may read, taken together; one that would exceed
# it stays a tensor of its own.  No kernel of ResNet-50's training step comes near.
_COPIED = 64


def inlined(sch: s_tir.Schedule, infos: list[SBlockInfo]) -> list[SBlockInfo]:
    """The blocks of a kernel, in order, that are left when the others are inlined."""
    tensors, rest = _large_and_shared(sch, infos), list(infos)

    def inline(how: Any, regions: str) -> bool:
        """Whether some block went: of those whose regions are of no tensor that stays."""
        count = len(rest)
        for info in list(rest):
            if any(region.source in tensors for region in getattr(sch.get(info.block_rv), regions)):
                continue
            try:
                how(info.block_rv)
            except s_tir.ScheduleError:
                continue
            rest.remove(info)
        return len(rest) < count

    while inline(sch.compute_inline, "writes") or inline(sch.reverse_compute_inline, "reads"):
        pass
    return rest


def _large_and_shared(sch: s_tir.Schedule, infos: list[SBlockInfo]) -> set[Any]:
    """Tensors that are read in several places, and whose expression is too large for copies."""
    blocks = [sch.get(info.block_rv) for info in infos]
    reads = [_reads(block) for block in blocks]
    uses = sum(reads, Counter[Any]())
    sizes: dict[Any, int] = {}  # elements that are read where a tensor is, if not that one
    kept = set()
    for info, block, read in zip(infos, blocks, reads, strict=True):
        size = sum(count * sizes.get(source, 1) for source, count in read.items())
        for tensor in {region.source for region in block.writes}:
            if info.is_injective() and uses[tensor] > 1 and size * uses[tensor] > _COPIED:
                kept.add(tensor)
            elif info.is_injective():
                sizes[tensor] = max(1, size)
    return kept


def _reads(block: Any) -> Counter[Any]:
    """The tensors that a block reads, and in how many places."""
    found: Counter[Any] = Counter()
    structural_walk(block.body, (TensorLoad, lambda load: found.update([load.source])))
    return found
