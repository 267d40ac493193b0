"""How fprop and dgrad of bfloat16 cut their work into tasks, by an estimate of cycles, and in which
order a task does its part."""

from __future__ import annotations

from dataclasses import dataclass

from ..emitters.loops import ceildiv
from ..machine import Machine

# Cycles of a step beyond its products, of a task; bytes a cycle of what all cores share.  Rough:
# they only choose between splits.
_STEP, _TASK, _SHARED = 150, 2000, 6
_SUMS = 4096  # bytes of a step's sums
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
        rounds = m.rounds(work.groups * split[0] * split[1])
        return rounds * (products + read / _SHARED + _TASK)

    return min(
        (
            (min(work.steps, max(least, ceildiv(rounds * m.cores, parts * work.groups))), parts)
            for parts in sorted({ceildiv(work.blocks, x) for x in range(1, work.blocks + 1)})
            for rounds in _ROUNDS
        ),
        key=cycles,
    )


def run_length(work: Work, result_bytes: int, m: Machine) -> int:
    """Steps of pixels that a task takes through all its blocks of channels before the next ones;
    0 for a block after another, each of all steps.

    The latter reads a block's weights from the level-1 cache, and the pixels again for each block
    from level 2.  But it writes a line of each pixel at a time, which in memory are all channels
    apart: nothing fetches such lines ahead, neighbours that are fetched with them are not written
    until all pixels are through, and a line that two blocks share is written twice.  In runs the
    pixels stay in level 1 while weights are read for each run, and what is written is whole.

    work.blocks : those of a task.  result_bytes : of a step and a block.
    """
    room = m.l1_bytes * 7 // 8 - _SUMS  # no cache keeps just what was used last
    weights = work.blocks * work.block_bytes
    # A step's pixels, and for each block the lines it writes and those of a later step.
    if weights + work.step_bytes + work.blocks * 2 * result_bytes <= room:
        return 1
    steps = (room - work.block_bytes) // (work.step_bytes + 2 * result_bytes)
    if weights > m.l2_bytes // 2 or steps * work.step_bytes < work.block_bytes:
        return 0  # weights would be read for longer than pixels are
    return min(steps, m.l2_bytes // 4 // (work.blocks * result_bytes))
