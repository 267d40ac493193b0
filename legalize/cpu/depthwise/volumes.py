"""fprop of depthwise convolutions of three dimensions, of as many filters as channels.

As in two dimensions channels fill the vectors, and a tile of columns has its sums in registers.
With depth as channels (`legalize.cpu.volume`) each would be a group of a few channels, whose
kernels fill no vector.  Tiles that meet the border of the columns are written out one by one.
"""

from __future__ import annotations

from itertools import groupby

from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from ..emitters.axes import Axis
from ..emitters.copies import Copy, Dim, move
from ..emitters.loops import Expr, bind, local, parallel, serial, vector, zero
from ..machine import Machine
from ..volume import Volume

NAME = "depthwise volume"
REASON = "one channel per group in three dimensions: channels fill the vectors"
_MOST_WRITTEN = 6  # tiles that meet the border
_UNROLLED = 3  # taps of a row that are written out


def applies(problem: ConvProblem, m: Machine) -> bool:
    """Whether this is the kernel of a problem of three dimensions."""
    return (
        problem.kind is ConvKind.FPROP
        and problem.groups == problem.c == problem.k
        and problem.c > 1
        and sum(not inner for _, inner, _ in _tiles(_axes(problem)[2], m)) <= _MOST_WRITTEN
    )


def _axes(problem: ConvProblem) -> list[Axis]:
    sizes, outs = problem.canonical_shape("data")[2:], problem.canonical_shape("grad")[2:]
    return [
        Axis(False, sizes[i], outs[i], problem.taps[i], problem.strides[i], problem.dilation[i],
             problem.padding[i])
        for i in range(3)
    ]  # fmt: skip


def _tiles(columns: Axis, m: Machine) -> list[tuple[int, bool, int]]:
    """Of each tile its first column, whether all its taps are on the data, and its columns."""
    most = min(columns.count, m.registers - 4, 14)
    wide = -(-columns.count // -(-columns.count // most))
    found = []
    for begin in range(0, columns.count, wide):
        width = min(wide, columns.count - begin)
        low = begin * columns.stride - columns.before
        high = (begin + width - 1) * columns.stride - columns.before
        inner = low >= 0 and high + (columns.kernel - 1) * columns.dilation < columns.size
        found.append((begin, inner and width == wide, width))
    return found


def write(problem: ConvProblem, m: Machine, buffers: dict[str, Expr]) -> None:
    """The whole kernel: operands in, tiles, result out."""
    p, v = problem, Volume(problem, m, buffers)
    x = v.flat("data") if _plain(p, "data") else v.channels_last("data", True)
    weights = v.scratch.new("weight_flat", p.t * p.r * p.s * p.c, p.accum_dtype)
    step = v.steps("weight")
    taps = {
        "D": Dim(p.t, step["D"], p.r * p.s * p.c), "H": Dim(p.r, step["H"], p.s * p.c),
        "W": Dim(p.s, step["W"], p.c),
    }  # fmt: skip
    dims = [taps[letter] for letter in p.layout("weight") if letter in taps]
    lane, block = Dim(p.c, step["O"], 1), 1 << 30
    move(
        Copy(v.flat("weight"), p.weight_dtype, weights, p.accum_dtype, 0, dims, lane, block, block,
             True),
        v.lanes,
    )  # fmt: skip
    plain = _plain(p, "grad")
    y = v.flat("grad") if plain else v.channels_last("grad", False)
    _Tiles(p, m, x, weights, y).write(v.lanes)
    if not plain:
        v.copy("grad", y, to_core=False)
    v.scratch.keep()


def _plain(problem: ConvProblem, role: str) -> bool:
    return (problem.layout(role), problem.dtype(role)) == ("NDHWC", problem.accum_dtype)


class _Tiles:
    """The tiles of all rows: x and y are NDHWC, w has the taps and then channels, of one dtype."""

    def __init__(self, problem: ConvProblem, m: Machine, x: Expr, w: Expr, y: Expr) -> None:
        self.problem, self.x, self.w, self.y = problem, x, w, y
        self.axes = _axes(problem)
        self.tiles = _tiles(self.axes[2], m)

    def write(self, lanes: int) -> None:
        p = self.problem
        with parallel(p.n, p.z, p.p) as row:
            full, tail = divmod(p.c, lanes)
            if full:
                with serial(full) as chunk:
                    self._row(row, bind(chunk * lanes), lanes)
            if tail:
                self._row(row, full * lanes, tail)

    def _row(self, row: list[Expr], at: Expr, lanes: int) -> None:
        """All columns of a row, of `lanes` channels from `at` on."""
        for inner, run in groupby(self.tiles, key=lambda one: one[1]):
            tiles = list(run)
            if not inner or len(tiles) == 1:
                for begin, _, width in tiles:
                    self._tile(row, at, lanes, begin, width)
                continue
            first, _, width = tiles[0]
            with serial(len(tiles)) as number:
                self._tile(row, at, lanes, bind(number * width + first), width)

    def _tile(self, row: list[Expr], at: Expr, lanes: int, begin: Expr, width: int) -> None:
        """So many columns from `begin` on; where that is no number all taps are on the data."""
        p, (n, z, a) = self.problem, row
        accum, registers = p.accum_dtype, [vector(i * lanes, lanes) for i in range(width)]
        acc = local("acc", width * lanes, accum)
        for register in registers:
            T.buffer_store(acc, zero(accum, lanes), [register])
        first = [position * axis.stride - axis.before
                 for position, axis in zip((z, a), self.axes, strict=False)]  # fmt: skip
        ends = [axis.reached(axis.taps(0), position)
                for position, axis in zip((z, a), self.axes, strict=False)]  # fmt: skip
        loops = [serial(last, start) for start, last in ends]
        with loops[0] as t, loops[1] as r:
            d, h = first[0] + t * p.dilation[0], first[1] + r * p.dilation[1]
            line = bind(((n * p.d + d) * p.h + h) * (p.w * p.c) + at)
            taps = bind((t * p.r + r) * (p.s * p.c) + at)

            def products(s: Expr) -> None:
                value = bind(self.w[vector(taps + s * p.c, lanes)])
                for i, register in enumerate(registers):
                    column = (begin + i) * p.strides[2] + s * p.dilation[2] - p.padding[2]
                    if isinstance(column, int) and not 0 <= column < p.w:
                        continue
                    data = self.x[vector(line + column * p.c, lanes)]
                    T.buffer_store(acc, acc[register] + data * value, [register])

            if isinstance(begin, int) or p.s <= _UNROLLED:
                for s in range(p.s):
                    products(s)
            else:
                with serial(p.s) as s:
                    products(s)
        place = bind(((n * p.z + z) * p.p + a) * (p.q * p.c) + begin * p.c + at)
        for i, register in enumerate(registers):
            T.buffer_store(self.y, acc[register], [vector(place + i * p.c, lanes)])
