"""fprop, dgrad and wgrad by Winograd's algorithm; see `winograd` for the algebra.

Transformed operands are large (36 numbers for 16), so tiles go through in chunks of a size that
caches hold: the chunk's tiles are transformed, then tasks multiply and transform back, each for a
block of channels with its 36 products in the level-2 cache.  The same operations in the same order
make each result, whatever the number of threads.

Of a volume a chunk is made of whole pieces (`algorithm.Pieces`), whose planes are met by the taps
in depth of others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from ..emitters.loops import (
    Expr,
    Scratch,
    bind,
    ceildiv,
    conjunction,
    int64,
    local,
    outer,
    parallel,
    prefetch,
    serial,
    vector,
    when,
    zero,
)
from ..emitters.memory import Image, Memory
from ..emitters.tiles import channel_block, tile_rows
from ..machine import Machine
from . import algorithm
from .algorithm import (
    APART,
    POINTS,
    SIZE,
    TAPS,
    TILE,
    A,
    B,
    G,
    Pieces,
    load,
    load_points,
    load_taps,
    store,
    store_points,
)

def even(count: int, most: int) -> int:
    """How many at a time, at most, so that all parts have about as many."""
    return ceildiv(count, ceildiv(count, most))


# ---- fprop and dgrad ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tiling:
    """How tiles are grouped: a task multiplies one group with one block of channels."""

    pieces: Pieces
    groups: int  # of a piece: one of images, whose pieces are groups
    height: int  # tiles in a register tile
    rows: int  # tiles in a group; those beyond the last one are never read
    chunk: int  # pieces transformed at a time

    @staticmethod
    def make(pieces: Pieces, most: int, row_bytes: int) -> _Tiling:
        count = pieces.size
        groups = ceildiv(count, 2 * most)
        size = ceildiv(count, groups)
        height = ceildiv(size, ceildiv(size, most))
        rows = ceildiv(size, height) * height
        groups = ceildiv(count, rows)
        if not pieces.depth:
            pieces, groups = replace(pieces, size=rows), 1
        bytes_ = POINTS * (groups * rows + pieces.halo) * row_bytes
        chunk = max(1, algorithm.CHUNK // bytes_)
        chunk = max(chunk, min(8, algorithm.MOST_CHUNK // bytes_))
        return _Tiling(pieces, groups, height, rows, even(pieces.count, chunk))

    @property
    def moved(self) -> int:
        """Tiles of a piece that are transformed, and what is read beyond its last."""
        return self.groups * self.rows + self.pieces.halo


def write_affine(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    dgrad = problem.kind is ConvKind.DGRAD
    operand, _, result = problem.roles
    size, out = problem.canonical_shape(operand), problem.canonical_shape(result)
    lanes = m.lanes("float32")
    vectors, _ = channel_block(m, "float32", out[1])
    block = vectors * lanes
    weight, panels = memory.panels("I" if dgrad else "O", 1, out[1], size[1], block)
    memory.move_weight(weight, panels, True, reverse=dgrad)
    batch = memory.batch(
        memory.operand(operand, 1, size[1], block=lanes), memory.result(1, out[1], block=block)
    )
    reduced = ceildiv(size[1], lanes) * lanes
    before = [TAPS - 1 - b if dgrad else b for b in problem.padding[problem.rank - 2 : problem.rank]]
    most = tile_rows(m, vectors)
    step = reduced + APART
    tiling = _Tiling.make(Pieces.of(problem, batch.images, step), min(most, 14), 4 * step)
    pieces, taps = tiling.pieces, tiling.pieces.taps
    asks = m.has_few_registers  # small register tiles read more for their products
    point_step = tiling.moved * step
    piece_step = POINTS * point_step
    moved = memory.scratch.new("tiles", tiling.chunk * piece_step, "float32")
    slab = taps * panels.reduced * block + APART  # of one point's weights, for a block of channels
    block_step = POINTS * slab
    room = algorithm.TOTAL - batch.bytes
    room = room // 4 - tiling.chunk * piece_step - panels.blocks * panels.block_step
    at_a_time = even(panels.blocks, max(1, room // block_step))
    turned = memory.scratch.new("points", at_a_time * block_step, "float32")

    def weights(first: Expr) -> None:
        """Transforms the weights of the blocks of channels from `first` on."""
        with parallel(at_a_time, taps, panels.reduced) as (b, t, c):
            exists = first + b < panels.blocks if panels.blocks % at_a_time else True
            with when(exists):
                source = (first + b) * panels.block_step + t * panels.t_step + c * block
                source = bind(source)
                target = bind(b * block_step + (t * panels.reduced + c) * block)
                with serial(vectors) as v:
                    terms = load_taps(weight, panels, source + v * lanes, lanes)
                    store_points(G, terms, turned, target + v * lanes, slab, lanes)

    def inputs(x: Image, first: Expr) -> None:
        """Transforms what the pieces from `first` on read."""
        with parallel(tiling.chunk, pieces.size + pieces.halo) as (i, row):
            piece = bind(first + i)
            place, exists, is_read = pieces.operand(pieces.first(piece), row)
            if pieces.count % tiling.chunk:
                is_read = conjunction(is_read, piece < pieces.count)
            with when(is_read):
                n, d, p, q = place
                corner = n, d, bind(p - before[0]), bind(q - before[1])
                target = bind(i * piece_step + row * step)
                with serial(reduced // lanes) as v:
                    values = load(x, corner, v * lanes, size[-2:], SIZE, lanes, exists)
                    store_points(B, values, moved, target + v * lanes, point_step, lanes)

    def products(y: Image, first: Expr, first_block: Expr) -> None:
        with parallel(at_a_time, tiling.chunk, tiling.groups) as (b, i, g):
            inside = first_block + b < panels.blocks if panels.blocks % at_a_time else True
            piece = first + i
            if pieces.count % tiling.chunk:
                inside = conjunction(inside, piece < pieces.count)
            with when(inside):
                begin = pieces.first(bind(piece))
                scratch = Scratch()
                sums = scratch.new("sums", POINTS * tiling.rows * block, "float32")
                with serial(POINTS) as e, serial(tiling.rows // tiling.height) as part:
                    rows = bind(part * tiling.height)
                    acc = local("acc", tiling.height * block, "float32")
                    at = [
                        vector((j * vectors + v) * lanes, lanes)
                        for j in range(tiling.height)
                        for v in range(vectors)
                    ]
                    for register in at:
                        T.buffer_store(acc, zero("float32", lanes), [register])
                    own = bind(g * tiling.rows + rows)
                    left = bind(i * piece_step + e * point_step + own * step)
                    right = bind(b * block_step + e * slab)
                    low, high = pieces.reached(begin[1] + own, tiling.height)
                    with serial(high, low) as t, serial(panels.reduced) as c:
                        tap, panel = bind(left + t * (pieces.tap * step)), t * panels.reduced + c
                        panel = bind(right + panel * block)
                        if asks:  # for the next point's weights and tiles
                            prefetch(turned, panel + slab, level=2)
                            ahead = c * ceildiv(tiling.height * step, panels.reduced)
                            prefetch(moved, tap + point_step + ahead, level=2)
                        terms = [turned[vector(panel + v * lanes, lanes)] for v in range(vectors)]
                        values = [moved[int64(tap + j * step + c)] for j in range(tiling.height)]
                        outer(acc, lanes, values, terms)
                    place = bind((e * tiling.rows + rows) * block)
                    for j, register in enumerate(at):
                        T.buffer_store(sums, acc[register], [vector(place + j * lanes, lanes)])
                with serial(tiling.rows) as row:
                    tile, exists = pieces.result(begin, bind(g * tiling.rows + row))
                    if tiling.groups * tiling.rows > pieces.size:
                        exists = conjunction(exists, g * tiling.rows + row < pieces.size)
                    with when(exists):
                        where = pieces.results.place(tile)
                        with serial(vectors) as v:
                            outputs(y, sums, row, v, where, first_block + b)
                scratch.keep()

    def outputs(
        y: Image, sums: Expr, row: Expr, v: Expr, place: tuple[Expr, Expr, Expr, Expr], b: Expr
    ) -> None:
        at = bind(row * block + v * lanes)
        values = load_points(A, sums, at, tiling.rows * block, lanes)
        store(y, place, b * block + v * lanes, pieces.results, values, lanes)

    once = at_a_time == panels.blocks
    if once:
        weights(0)
    chunks = ceildiv(pieces.count, tiling.chunk)
    with batch.each() as (_, _, (x, y)), serial(chunks) as number:
        first = bind(number * tiling.chunk)
        inputs(x, first)
        with serial(ceildiv(panels.blocks, at_a_time)) as part:
            first_block = bind(part * at_a_time)
            if not once:
                weights(first_block)
            products(y, first, first_block)


# ---- wgrad -------------------------------------------------------------------------------------


def write_wgrad(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    lanes = m.lanes("float32")
    vectors, _ = channel_block(m, "float32", problem.k)
    block = vectors * lanes
    batch = memory.batch(
        memory.operand("grad", 1, problem.k, block=block),
        memory.operand("data", 1, problem.c, block=lanes),
    )
    weight, panels = memory.panels("O", 1, problem.k, problem.c, block)
    slices, blocks = ceildiv(problem.c, lanes), panels.blocks
    channels = slices * lanes + blocks * block
    pieces = Pieces.of(problem, batch.images, channels)
    bytes_ = 4 * POINTS * channels
    chunk = max(1, algorithm.CHUNK // bytes_)
    chunk = max(chunk, min(128, algorithm.MOST_CHUNK // bytes_))
    if not pieces.depth:
        pieces = replace(pieces, size=even(pieces.size, chunk))
    some = even(pieces.count, max(1, chunk // (pieces.size + pieces.halo)))  # at a time
    read = pieces.size + pieces.halo
    x_step = some * read * lanes + APART
    y_step = some * pieces.size * block + APART
    data = memory.scratch.new("data_points", slices * POINTS * x_step, "float32")
    grad = memory.scratch.new("grad_points", blocks * POINTS * y_step, "float32")
    height = min(tile_rows(m, vectors), lanes // 2)
    height = next(h for h in range(height, 0, -1) if lanes % h == 0)
    padding = problem.padding[problem.rank - 2 : problem.rank]

    def inputs(x: Image, y: Image, first: Expr, count: Expr) -> None:
        with parallel(some, read) as (i, row), when(i < count):
            where = pieces.first(bind(first + i))
            (n, d, p, q), exists, is_read = pieces.operand(where, row)
            with when(conjunction(is_read, exists)):
                corner = n, d, bind(p - padding[0]), bind(q - padding[1])
                target = bind((i * read + row) * lanes)
                with serial(slices) as v:
                    values = load(x, corner, v * lanes, (problem.h, problem.w), SIZE, lanes)
                    store_points(B, values, data, v * POINTS * x_step + target, x_step, lanes)
            tile, exists = pieces.result(where, row)
            with when(conjunction(exists, row < pieces.size if pieces.halo else True)):
                place, target = pieces.results.place(tile), bind((i * pieces.size + row) * block)
                with serial(blocks) as b, serial(vectors) as v:
                    channel = b * block + v * lanes
                    values = load(y, place, channel, (problem.p, problem.q), TILE, lanes)
                    there = b * POINTS * y_step + target + v * lanes
                    store_points(A, values, grad, there, y_step, lanes)

    def products(is_first: Expr, first: Expr, count: Expr) -> None:
        with parallel(blocks, slices, pieces.taps) as (b, c, tap):
            scratch = Scratch()
            sums = scratch.new("sums", POINTS * lanes * block, "float32")
            with serial(POINTS) as e, serial(lanes // height) as part:
                rows = bind(part * height)
                acc = local("acc", height * block, "float32")
                at = [
                    vector((i * vectors + v) * lanes, lanes)
                    for i in range(height)
                    for v in range(vectors)
                ]
                for register in at:
                    T.buffer_store(acc, zero("float32", lanes), [register])
                left = bind((c * POINTS + e) * x_step + rows + tap * (pieces.tap * lanes))
                right = bind((b * POINTS + e) * y_step)
                with serial(count) as i:
                    low, high = pieces.rows(pieces.first(bind(first + i)), tap)
                    here = bind(left + i * (read * lanes))
                    there = bind(right + i * (pieces.size * block))
                    with serial(high, low) as t:
                        terms = [
                            grad[vector(there + t * block + v * lanes, lanes)]
                            for v in range(vectors)
                        ]
                        values = [data[int64(here + t * lanes + j)] for j in range(height)]
                        outer(acc, lanes, values, terms)
                place = bind((e * lanes + rows) * block)
                for i, register in enumerate(at):
                    T.buffer_store(sums, acc[register], [vector(place + i * lanes, lanes)])
            exist = lanes
            if problem.c % lanes:
                exist = bind(T.min(int64(lanes), problem.c - c * lanes))
            with serial(exist) as row, serial(vectors) as v:
                target = b * panels.block_step + tap * panels.t_step + (c * lanes + row) * block
                outputs(sums, is_first, bind(target), row, v)
            scratch.keep()

    def outputs(sums: Expr, is_first: Expr, target: Expr, row: Expr, v: Expr) -> None:
        at = bind(row * block + v * lanes)
        values = load_points(G, sums, at, lanes * block, lanes)
        for r, line in enumerate(values):
            for s, value in enumerate(line):
                place = vector(target + r * panels.r_step + s * panels.s_step + v * lanes, lanes)
                if is_first is not True:
                    before = T.if_then_else(is_first, zero("float32", lanes), weight[place])
                    value = before + value
                T.buffer_store(weight, value, [place])

    chunks = ceildiv(pieces.count, some)
    with batch.each() as (part, _, (y, x)), serial(chunks) as number:
        first = bind(number * some)
        count = some
        if pieces.count % some:
            count = bind(T.min(int64(some), pieces.count - first))
        inputs(x, y, first, count)
        products(conjunction(part == 0, chunks == 1 or number == 0), first, count)
    memory.move_weight(weight, panels, False)
