"""Results with channels outside: a band of rows waits in the level-1 cache, then is turned.

Sums are channels of a pixel; the caller's memory has a row of pixels for each channel.  A block of
channels of some rows is turned in registers and written once it is complete, to lines that were
asked for meanwhile: there is no copy of the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from relay_wgrad.problem import DTYPE_BYTES

from ..emitters.axes import Axis
from ..emitters.copies import Copy, Dim, move
from ..emitters.lines import Lines
from ..emitters.loops import Expr, bind, ceildiv, conjunction, local, one_core, when
from ..emitters.memory import Activation, Image, Memory
from ..emitters.tiles import Tile, heights

_BYTES = 16 << 10  # of a band, at most: a third of a level-1 cache or so
_TASKS = 4  # of each core, at least, if they can be


@dataclass(frozen=True)
class Stage:
    """Bands of some `tiles` of rows, for a result of the caller's."""

    memory: Memory
    result: Activation
    axes: list[Axis]
    tile: Tile
    tiles: int

    @property
    def columns(self) -> int:
        return self.axes[1].out

    @property
    def rows(self) -> int:
        """Of a band, of the result."""
        return self.tiles * self.tile.rows * self.axes[0].phases

    @property
    def count(self) -> int:
        """Bands of a plane."""
        return ceildiv(self.axes[0].out, self.rows)

    def room(self, band: Expr) -> Image:
        """Memory for a band, of rows as they are numbered in the result."""
        block = self.tile.block
        line = self.columns * block
        buffer = local("band", self.rows * line, self.memory.accum)
        return Image(buffer, bind(band * (-self.rows * line)), 0, line, block, 0)

    def place(self, y: Image, n: Expr, plane: Expr, band: Expr, channel: Expr) -> Expr:
        """Where the caller's memory of a band begins."""
        rows = band * (self.rows * y.h_step)
        return bind(y.base + n * y.n_step + y.plane(plane) + rows + channel * self._step)

    @property
    def _step(self) -> int:
        step = self.memory.strides(self.result.role)["C"]
        assert isinstance(step, int)
        return step

    def lines(self, place: Expr) -> Lines:
        """What a band is written to."""
        memory, role = self.memory, self.result.role
        line = memory.line_bytes // DTYPE_BYTES[memory.problem.dtype(role)]
        each = ceildiv(self.rows * self.columns, line)
        return Lines(memory.flat(role), place, self.tile.block, self._step, each, line)

    def write(self, room: Image, place: Expr, band: Expr, widths: list[tuple[int, Expr]]) -> None:
        """Turns a band; `widths`: (channels, condition that there are so many)."""
        for channels, is_wide in widths:
            for rows, is_high in heights(self.axes[0].out, self.rows, band):
                if (condition := conjunction(is_wide, is_high)) is not False:
                    with when(condition):
                        self._turn(room, place, rows, channels)

    def _turn(self, room: Image, place: Expr, rows: int, channels: int) -> None:
        memory, role, block = self.memory, self.result.role, 1 << 30
        pixels = Dim(rows * self.columns, 1, self.tile.block)
        lane = Dim(channels, self._step, 1)
        with one_core(True):
            move(
                Copy(
                    memory.flat(role), memory.problem.dtype(role), room.buffer, memory.accum,
                    0, [pixels], lane, block, block, False, place,
                ),
                memory.lanes,
            )  # fmt: skip


def stage(
    memory: Memory, result: Activation, axes: list[Axis], tile: Tile, each: Expr, cores: int
) -> Stage | None:
    """For a result whose pixels follow each other in the caller's memory, of rows that are short
    enough; bands are whole lines if they can be, and many where each is a task for `each`."""
    if not Lines.are_apart(memory, result):
        return None
    one = tile.rows * axes[0].phases * axes[1].out
    most = _BYTES // (one * tile.block * DTYPE_BYTES[memory.accum])
    if most < 1:
        return None
    line = memory.line_bytes // DTYPE_BYTES[memory.problem.dtype(result.role)]
    high = ceildiv(axes[0].count, tile.rows)
    tiles = min(most, high, line // math.gcd(one, line))
    while isinstance(each, int) and tiles > 1 and each * ceildiv(high, tiles) < _TASKS * cores:
        tiles -= 1
    return Stage(memory, result, axes, tile, tiles)
