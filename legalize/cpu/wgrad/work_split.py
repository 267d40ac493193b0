"""How packed wgrad cuts its work into tasks, by an estimate of cycles."""

from __future__ import annotations

from dataclasses import dataclass

from ..emitters.loops import ceildiv
from ..machine import Machine

# Cycles of a register tile beyond its multiplications; of an element that is packed; of an element
# of a part's sums that is written and read again.  Rough: they only choose between options.
_TILE_CYCLES, _PACK_CYCLES, _PART_CYCLES = 40, 0.8, 1.5
_MOST_PARTS = 16 << 20  # bytes
# Of a level-2 cache: what the packed data may take, beside the gradient that passes by, and all of
# the gradient, which is read only once for all tiles of data.
_DATA_SHARE, _GRAD_SHARE = 0.625, 1.0


@dataclass(frozen=True)
class Work:
    """One group's product in tiles and panels, and how many groups there are."""

    groups: int
    taps: int
    units: int  # of pixels; for a symbolic batch any number
    blocks: int  # of filters
    tiles: int  # of channels
    block_bytes: int  # of a block's panel of gradient
    tile_bytes: int  # of a tile's panel of data
    tile_cycles: float  # of the multiplications of a tile and a block over a unit
    size: int  # of the sums, in elements
    element_bytes: int


@dataclass(frozen=True)
class WorkSplit:
    """A task has a part of the pixels, `k_blocks` blocks of filters and `c_tiles` tiles."""

    splits: int  # parts of the sum over pixels
    k_blocks: int
    c_tiles: int

    def chunks(self, work: Work) -> tuple[int, int]:
        """(chunks of blocks, chunks of tiles); the last ones may have less than the others."""
        return ceildiv(work.blocks, self.k_blocks), ceildiv(work.tiles, self.c_tiles)

    def cycles(self, work: Work, m: Machine) -> float:
        """Of the core that has most to do."""
        k_chunks, c_chunks = self.chunks(work)
        rounds = m.rounds(self.splits * work.groups * k_chunks * c_chunks)
        products = work.taps * self.k_blocks * self.c_tiles * (work.tile_cycles + _TILE_CYCLES)
        panels = self.k_blocks * work.block_bytes + work.taps * self.c_tiles * work.tile_bytes
        unit = products + panels / work.element_bytes * _PACK_CYCLES
        sums = (self.splits + 1) * work.size * _PART_CYCLES / m.cores if self.splits > 1 else 0.0
        cycles: float = rounds * ceildiv(work.units, self.splits) * unit + sums
        return cycles


def best_split(work: Work, m: Machine) -> WorkSplit:
    """The split of the fewest cycles whose panels the caches hold."""
    parts = _MOST_PARTS // (work.size * work.element_bytes)
    most = max(1, min(work.units, m.most_parts, parts))
    fitting = [
        (k, c)
        for k in _sizes(work.blocks, int(m.l2_bytes * _GRAD_SHARE) // work.block_bytes)
        for c in _sizes(work.tiles, int(m.l2_bytes * _DATA_SHARE) // work.tile_bytes)
    ]
    options = (WorkSplit(splits, k, c) for splits in range(1, most + 1) for k, c in fitting)
    return min(options, key=lambda split: split.cycles(work, m))


def _sizes(total: int, most: int) -> list[int]:
    """Sizes of chunks, `most` at most if that is 1 or more, of which none has a smaller equal."""
    sizes = {ceildiv(total, x) for x in range(1, total + 1)}
    return sorted((x for x in sizes if x <= max(1, most)), reverse=True)
