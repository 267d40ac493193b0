"""Weights that each task copies for itself.

What one of many cores has copied the others read from its cache, slower than what none has written.
So a task has a block of channels and a part of all tiles of pixels, and copies the block's weights
before the first of them: some tasks copy the same, but each reads what its own core has written,
and nobody waits for a loop of copies.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...quotient import share
from ..emitters.loops import Expr, ceildiv, local, parallel, serial
from ..emitters.memory import Memory, Panels
from ..machine import Machine

# Times as long as others takes an element that another core has just written; measured, and so are,
# in multiply-adds of a vector, an element that is copied and waking all cores once more.
FRESH, _COPIED, _LOOP = 3, 1, 30_000
_MOST_TASKS = 16  # of each core


@dataclass(frozen=True)
class OwnWeights:
    """Blocks of `panels`, each copied by as many tasks as all `tiles` have parts.

    reverse : as of `Memory.move_weight`.  by_block : whether neighbours have the same block, or the
        same tiles.
    """

    memory: Memory
    panels: Panels
    reverse: bool
    tiles: int
    parts: int
    by_block: bool

    @contextlib.contextmanager
    def tasks(self) -> Iterator[tuple[Expr, Expr, tuple[Expr, Panels]]]:
        """A parallel loop: a block, a loop over its tiles, the block's weights."""
        sizes = self.panels.blocks, self.parts
        with parallel(*(sizes if self.by_block else sizes[::-1])) as index:
            block, part = index if self.by_block else index[::-1]
            own = replace(self.panels, first=block)
            weight = local("own_weights", own.block_step, self.memory.accum)
            self.memory.move_weight(weight, own, True, reverse=self.reverse)
            begin, end = share(part, self.tiles, self.parts)
            with serial(end, begin) as tile:
                yield block, tile, (weight, own)


def own_weights(
    memory: Memory, m: Machine, panels: Panels, reverse: bool, tiles: int, chunks: int
) -> OwnWeights | None:
    """For so many tiles of pixels, or None where one copy for all, of which a core reads a chunk of
    so many, is less work."""
    problem, of_block = memory.problem, panels.block_step
    of_tile = problem.flop / 2 / m.lanes(memory.accum) / (panels.blocks * tiles)

    def work(parts: int) -> float:
        of_task = of_block * _COPIED + math.ceil(tiles / parts) * of_tile
        return m.rounds(panels.blocks * parts) * of_task

    most = min(tiles, ceildiv(_MOST_TASKS * m.cores, panels.blocks))
    parts = min(range(1, most + 1), key=work)
    of_shared = _COPIED / m.cores + FRESH * min(1, 1 / chunks + 1 / m.cores)
    shared = panels.size * of_shared + _LOOP + m.rounds(panels.blocks * tiles) * of_tile
    if work(parts) >= shared:
        return None
    of_part = math.prod(problem.shape(problem.roles[0])) / parts
    return OwnWeights(memory, panels, reverse, tiles, parts, of_block >= of_part)
