"""Register tiles: how many pixels and channels the accumulators of fprop and dgrad cover."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..machine import Machine
from .axes import Axis
from .loops import Expr, conjunction, when

# In multiply-adds: a load, and the time until a sum may be added to again.  Cycles of a tile beyond
# its products; and the share of the cycles that another tile must come below.
_LOAD, _LATENCY, _TILE, _FEWER = 1.1, 8, 60, 0.9


@dataclass(frozen=True)
class Tile:
    """Pixels (rows x columns) times channels (vectors x lanes) in registers."""

    rows: int
    columns: int
    vectors: int
    lanes: int

    @property
    def block(self) -> int:
        return self.vectors * self.lanes

    @property
    def size(self) -> int:
        return self.rows * self.columns * self.block


def channel_block(
    m: Machine, dtype: str, channels: int, wide: bool = False, least: int = 1
) -> tuple[int, int]:
    """(vectors, lanes) of a block of output channels: least padding first, then two vectors, or as
    many as can be if it should be wide.

    least : vectors, where there are so many.
    """
    lanes = m.lanes(dtype)
    if channels < lanes:
        return 1, 1 << (channels - 1).bit_length()
    preferred = [
        vectors
        for vectors in ((2, 3, 1) if m.has_few_registers else (2, 4, 3, 1))
        if vectors >= min(least, -(-channels // lanes))
    ]
    return min(
        sorted(preferred, reverse=True) if wide else preferred,
        key=lambda v: -(-channels // (v * lanes)) * v * lanes,
    ), lanes


def cache_sets_conflict(m: Machine, pixels: int, step_bytes: Expr) -> bool:
    """Whether so many pixels at this step fall on too few places of a level-1 cache."""
    if not isinstance(step_bytes, int):
        return False
    places = m.l1_way_bytes // math.gcd(step_bytes, m.l1_way_bytes)
    return -(-pixels // places) > m.l1_ways - 2


def tile_rows(m: Machine, vectors: int) -> int:
    """Rows of so many vectors whose accumulators fit beside one row of operands and a splat."""
    return (m.registers - vectors - 1) // vectors


def pixel_tile(m: Machine, vectors: int, rows: int, columns: int) -> tuple[int, int]:
    """(rows, columns) of pixels whose accumulators fit in registers."""
    most = min(tile_rows(m, vectors), 16)
    tiles = -(-columns // most)
    wide = -(-columns // tiles)
    high = min(most // wide, rows)
    return (high if columns == wide else 1), wide


def even_tile(
    m: Machine, dtype: str, channels: int, pixels: int, reduced: int, given: tuple[int, int],
    step_bytes: int,
) -> tuple[int, int]:  # fmt: skip
    """(vectors, pixels) of a product's register tile: the `given` ones, unless their tiles are so
    few that some cores have more than others, and another size is less work for these.

    step_bytes : from a pixel to the next.
    """
    lanes = m.lanes(dtype)

    def cycles(tile: tuple[int, int]) -> float:  # of the core that has most to do
        vectors, columns = tile
        tasks = -(-pixels // columns) * -(-channels // (vectors * lanes))
        step = max(vectors * columns, _LOAD * (vectors + columns), _LATENCY)
        return -(-tasks // m.cores) * (reduced * step / 2 + _TILE)

    found = min(
        (
            (vectors, columns)
            for vectors in (4, 3, 2, 1)
            for columns in range(min(tile_rows(m, vectors), 16, pixels), 0, -1)
            if not cache_sets_conflict(m, columns, step_bytes)
        ),
        key=cycles, default=given,
    )  # fmt: skip
    return found if cycles(found) < _FEWER * cycles(given) else given


def row_tile(m: Machine, vectors: int, lanes: int) -> Tile:
    """The largest tile, of pixels that need not be at one step."""
    return Tile(1, min(tile_rows(m, vectors), 16), vectors, lanes)


def shapes(axes: Sequence[Axis], tile: Tile, a: Expr, b: Expr) -> Iterator[tuple[int, int]]:
    """The tile's size, and its smaller ones for the ends of columns and rows, each in turn.

    What is emitted between two steps is under the condition that the tile at (a, b) has that size.
    """
    for high, at_row in _ends(axes[0].count, tile.rows, a):
        for wide, at_column in _ends(axes[1].count, tile.columns, b):
            with when(conjunction(at_row, at_column)):
                yield high, wide


def heights(count: int, height: int, number: Expr) -> list[tuple[int, Expr]]:
    """(rows, condition that tile `number` has so many) where tiles cut `count` rows."""
    rest, last = count % height, -(-count // height) - 1
    if not rest:
        return [(height, True)]
    return [(height, number < last), (rest, number == last)]


def _ends(count: int, step: int, start: Expr) -> list[tuple[int, Expr]]:
    """(size, condition) of the pieces that cut `count` into steps."""
    rest = count % step
    if not rest:
        return [(step, True)]
    if count < step:
        return [(rest, True)]
    return [(step, start + step <= count), (rest, start + step > count)]
