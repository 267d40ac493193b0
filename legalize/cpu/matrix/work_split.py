"""How fprop and dgrad of bfloat16 cut their work into tasks, by an estimate of cycles."""

from __future__ import annotations

from dataclasses import dataclass

from ..emitters.loops import ceildiv
from ..machine import Machine

# Cycles of a step beyond its products, of a task; bytes a cycle of what all cores share.  Rough:
# they only choose between splits.
_STEP, _TASK, _SHARED = 150, 2000, 6
_ROUNDS = (1, 2, 3, 4, 6, 8)  # tasks of a core that are tried, where there are as many


@dataclass(frozen=True)
class Work:
    """One group's steps of pixels times blocks of channels, and how many groups there are."""

    groups: int
    steps: int
    blocks: int
    cycles: float  # of a step and a block: the products
    step_bytes: int  # of a step's pixels
    block_bytes: int  # of a block's weights


def best_split(work: Work, m: Machine) -> tuple[int, int]:
    """(groups of steps, parts of the blocks): tasks of which the slowest core is done first.

    A task reads the weights of its part and the pixels of its group, which stay in its level-2
    cache, from a cache that all share or from memory.
    """
    least = ceildiv(work.steps, max(1, m.l2_bytes // 2 // work.step_bytes))

    def cycles(split: tuple[int, int]) -> float:
        steps, blocks = ceildiv(work.steps, split[0]), ceildiv(work.blocks, split[1])
        products = steps * blocks * (work.cycles + _STEP)
        read = blocks * work.block_bytes + steps * work.step_bytes
        rounds = ceildiv(work.groups * split[0] * split[1], m.cores)
        return rounds * (products + read / _SHARED + _TASK)

    return min(
        (
            (min(work.steps, max(least, ceildiv(rounds * m.cores, parts * work.groups))), parts)
            for parts in sorted({ceildiv(work.blocks, x) for x in range(1, work.blocks + 1)})
            for rounds in _ROUNDS
        ),
        key=cycles,
    )
