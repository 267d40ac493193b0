"""fprop, dgrad and wgrad of depthwise convolutions: one input channel per group.

Filter k = c * M + m belongs to channel c; M is the multiplier.  Every product is elementwise over
c, so c fills the vectors, and what has filters is stored as [m][c].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...quotient import share
from ..emitters.axes import Axis
from ..emitters.loops import (
    Expr,
    bind,
    ceildiv,
    conjunction,
    digits,
    local,
    parallel,
    prefetch,
    serial,
    vector,
    when,
    zero,
)
from ..emitters.memory import Image, Memory, Panels
from ..emitters.partial_sums import parts_of
from ..emitters.tiles import Tile, shapes
from ..machine import Machine
from . import cache_lines as depthwise_lines
from .register_sums import Sums

# How much more than the level-2 caches is what comes from memory: only that is worth asking for
# where vectors share cache lines.  Measured.
FAR = 18
# Parts of a row's vectors at most; and what it takes to begin one, in vectors.  Rough.
_MOST_PARTS, _TASK = 16, 0.2
# Phases of dgrad that are written out one by one, with all that is known of their taps.
_UNROLLED = 4


def write_rows(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel of fprop or dgrad: operands in, core, result out."""
    _affine(problem, m, memory, *_panels(problem, m, memory))


def write_lines(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel of wgrad by lines of pixels."""
    weight, panels, lanes = _panels(problem, m, memory)
    far = _from_memory(problem, m, problem.bytes)
    core = depthwise_lines.Lines(problem, m, memory.accum, panels, lanes, far)
    _wgrad(problem, m, memory, weight, panels, lanes, core)


def write_sums(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel of wgrad by sums of each tap."""
    weight, panels, lanes = _panels(problem, m, memory)
    core = Sums(problem, m, memory.accum, panels, lanes)
    _wgrad(problem, m, memory, weight, panels, lanes, core)


def _panels(problem: ConvProblem, m: Machine, memory: Memory) -> tuple[Expr, Panels, int]:
    """The weights' memory, how they lie in it, and the lanes of a vector."""
    lanes = min(m.lanes(memory.accum), 1 << (problem.c - 1).bit_length())
    padded = -(-problem.c // lanes) * lanes
    weight, panels = memory.panels("O", problem.k // problem.c, problem.c, 1, padded)
    return weight, panels, lanes


def _from_memory(problem: ConvProblem, m: Machine, moved: Expr) -> bool:
    """Whether so many bytes are too many for the caches, as far as is known."""
    return bool(problem.is_static and moved > FAR * m.l2_bytes * m.cores)


def _affine(
    problem: ConvProblem, m: Machine, memory: Memory, weight: Expr, panels: Panels, lanes: int
) -> None:
    dgrad = problem.kind is ConvKind.DGRAD
    operand, _, result = problem.roles
    multiplier = panels.groups
    size, out = problem.canonical_shape(operand), problem.canonical_shape(result)
    kernel = (problem.r, problem.s)
    axes = [
        Axis(
            dgrad, size[2 + i], out[2 + i], kernel[i],
            problem.strides[i], problem.dilation[i], problem.padding[i],
        )
        for i in (0, 1)
    ]  # fmt: skip
    rows, columns = axes
    ins, outs = (multiplier, 1) if dgrad else (1, multiplier)
    memory.move_weight(weight, panels, True, interleaved=multiplier > 1, reverse=dgrad)
    batch = memory.batch(
        memory.operand(operand, ins, problem.c, block=lanes, interleaved=ins > 1),
        memory.result(outs, problem.c, block=lanes, interleaved=outs > 1),
    )
    most = min(columns.count, m.registers - 4, 14)
    # Vectors that share a line find it in a level-1 cache, unless it comes from memory.
    shared = m.vector_bytes < m.line_bytes
    ask_read = shared and _from_memory(problem, m, problem.bytes)
    written = math.prod(problem.shape(result)) * DTYPE_BYTES[problem.dtype(result)]
    ask_written = shared and _from_memory(problem, m, 2 * written)  # what is stored is read first
    tile = Tile(1, ceildiv(columns.count, ceildiv(columns.count, most)), 1, lanes)
    # A task is a row of results, or some of its vectors: finding its place takes as long as some
    # multiplications.
    wide_tiles, chunks = ceildiv(columns.count, tile.columns), panels.block // lanes
    sharing = max(1, m.line_bytes // m.vector_bytes)  # vectors of a line
    parts = _parts_of_row(batch.images * rows.count * outs, chunks, m.cores)
    with (
        batch.each() as (_, images, (x, y)),
        parallel(images, rows.count, outs, parts) as (n, a, filter_, part),
        serial(wide_tiles) as b,
        serial(*share(part, chunks, parts)[::-1]) as chunk,
    ):
        tile_number, b = b, bind(b * tile.columns)

        def ask(
            image: Image, start: Expr, pixels: int, share: Expr, *, write: bool = False
        ) -> None:
            """Asks for a share of the lines of a row of pixels."""
            line, shares = m.line(memory.accum), wide_tiles * ceildiv(chunks, sharing)
            some = ceildiv(pixels * image.w_step, line * shares)
            first = bind(start + share * (some * line))
            for i in range(some):
                prefetch(image.buffer, first + i * line, write=write)

        def tiles(phases: Sequence[Expr]) -> None:
            """One phase of rows and of columns."""
            h, w = rows.taps(phases[0]), columns.taps(phases[1])
            for _, wide in shapes(axes, tile, a, b):
                acc = local("acc", wide * lanes, memory.accum)
                at = [vector(i * lanes, lanes) for i in range(wide)]
                results = []
                for i, register in enumerate(at):
                    T.buffer_store(acc, zero(memory.accum, lanes), [register])
                    row, exists_row = rows.place(a, phases[0])
                    column, exists_column = columns.place(b + i, phases[1])
                    place = bind(y.at(n, row, column, filter_) + chunk * lanes)
                    results.append((place, conjunction(exists_row, exists_column)))
                    if not shared:
                        prefetch(y.buffer, place, write=True)
                position = bind(a * rows.scale + h.offset)
                first, last = rows.reached(h, a)
                if (ask_read or ask_written) and all(isinstance(x, int) and not x for x in phases):
                    # The next rows' lines in the order of memory: each vector asks for a share.
                    with when(chunk % sharing == 0):
                        share = bind(tile_number * ceildiv(chunks, sharing) + chunk // sharing)
                        for i in range(rows.phases if ask_written else 0):
                            start = y.at(n, (a + 1) * rows.phases + i, 0, filter_)
                            ask(y, start, out[3], share, write=True)
                        for i in range(rows.scale if ask_read else 0):
                            start = x.at(n, position + h.count * h.reach + i, 0, 0)
                            ask(x, start, size[3], share)
                # A few taps of a row together share what they load.
                unrolled = w.count if isinstance(w.count, int) and 0 < w.count <= 3 else 1
                loops = serial(ins), serial(last, first), serial(w.count // unrolled)
                with loops[0] as term, loops[1] as r, loops[2] as part:
                    line = bind(x.at(n, position + r * h.reach, 0, term) + chunk * lanes)
                    panel = panels.at(term + filter_, 0, h.first + r * h.step, w.first)
                    panel = bind(panel + chunk * lanes)
                    for j in range(unrolled):
                        s = part * unrolled + j
                        column = bind(b * columns.scale + w.offset + s * w.reach)
                        image = bind(line + column * x.w_step)
                        taps = panel + s * (w.step * panels.s_step)
                        value = bind(weight[vector(taps, lanes)])
                        for i, register in enumerate(at):
                            step = i * columns.scale
                            data = x.buffer[vector(image + step * x.w_step, lanes)]
                            condition = _may_miss(columns, i, wide, column + step)
                            if condition is not None:
                                data = T.if_then_else(condition, data, zero(memory.accum, lanes))
                            T.buffer_store(acc, acc[register] + data * value, [register])
                for register, (place, exists) in zip(at, results, strict=True):
                    if exists is False:  # a phase that has no such row or column
                        continue
                    with when(exists):
                        T.buffer_store(y.buffer, acc[register], [vector(place, lanes)])

        count = rows.phases * columns.phases
        if shared and count <= _UNROLLED:
            for phase in range(count):
                tiles(divmod(phase, columns.phases))
        else:
            with serial(count) as phase:
                tiles(digits(phase, (rows.phases, columns.phases)))


def _parts_of_row(rows: Expr, chunks: int, cores: int) -> int:
    """Parts of the vectors of a row's pixels: one, unless more of them are even work for cores that
    rows are not."""
    if not isinstance(rows, int):
        return 1

    def vectors(parts: int) -> float:  # of the core that has most to do
        return ceildiv(rows * parts, cores) * (ceildiv(chunks, parts) + _TASK)

    return min(range(1, min(chunks, _MOST_PARTS) + 1), key=vectors)


def _may_miss(axis: Axis, i: int, wide: int, column: Expr) -> Expr:
    """Whether output i of a tile is on the operand, if it may not be; else None."""
    before, after = axis.border()
    low = column >= 0 if i * axis.scale < before else None
    high = column < axis.size if (wide - 1 - i) * axis.scale < after else None
    if low is None or high is None:
        return high if low is None else low
    return conjunction(low, high)


def _wgrad(
    problem: ConvProblem, m: Machine, memory: Memory, weight: Expr, panels: Panels, lanes: int,
    core: Sums | depthwise_lines.Lines,
) -> None:  # fmt: skip
    multiplier = panels.groups
    batch = memory.batch(
        memory.operand("grad", multiplier, problem.c, block=lanes, interleaved=multiplier > 1),
        memory.operand("data", 1, problem.c, block=lanes),
    )
    splits = core.splits(batch.images, m.cores)
    with parts_of(weight, memory, panels.size, splits, lanes) as parts:
        core.write(batch, parts, splits)
    memory.move_weight(weight, panels, False, interleaved=multiplier > 1)
