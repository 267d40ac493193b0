"""fprop, dgrad and wgrad by Winograd's algorithm; see `winograd` for the algebra.

Transformed operands are large (36 numbers for 16), so tiles go through in chunks of a size that
caches hold: the chunk's tiles are transformed, then tasks multiply and transform back, each for a
block of channels with its 36 products in the level-2 cache.  The same operations in the same order
make each result, whatever the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from .algorithm import (
    APART,
    POINTS,
    SIZE,
    TAPS,
    TILE,
    A,
    B,
    G,
    Tiles,
    load,
    load_points,
    load_taps,
    store,
    store_points,
)

# Bytes of transformed tiles in a chunk, shares of a level-3 cache; and of all memory that fprop and
# dgrad take for tiles and weights, unless a single block of channels needs more.
CHUNK, MOST_CHUNK, TOTAL = 8 << 20, 24 << 20, 63 << 20


# ---- fprop and dgrad ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tiling:
    """How tiles are grouped: a task multiplies one group with one block of channels."""

    tiles: int
    groups: int
    height: int  # tiles in a register tile
    rows: int  # tiles in a group; those beyond its last are never read
    chunk: int  # groups transformed at a time

    @staticmethod
    def make(tiles: int, most: int, row_bytes: int) -> _Tiling:
        groups = ceildiv(tiles, 2 * most)
        size = ceildiv(tiles, groups)
        height = ceildiv(size, ceildiv(size, most))
        rows = ceildiv(size, height) * height
        groups = ceildiv(tiles, rows)
        group_bytes = POINTS * rows * row_bytes
        chunk = max(1, CHUNK // group_bytes)
        chunk = min(groups, max(chunk, min(8, MOST_CHUNK // group_bytes)))
        return _Tiling(tiles, groups, height, rows, ceildiv(groups, ceildiv(groups, chunk)))


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
    before = [TAPS - 1 - b if dgrad else b for b in problem.padding[:2]]
    tiles = Tiles(batch.images, *out[2:])
    most = tile_rows(m, vectors)
    step = reduced + APART
    tiling = _Tiling.make(tiles.count, min(most, 14), 4 * step)
    asks = m.has_few_registers  # small register tiles read more for their products
    point_step = tiling.rows * step
    group_step = POINTS * point_step
    moved = memory.scratch.new("tiles", tiling.chunk * group_step, "float32")
    slab = panels.reduced * block + APART  # of one point's weights, for one block of channels
    block_step = POINTS * slab
    room = (
        (TOTAL - batch.bytes) // 4 - tiling.chunk * group_step - panels.blocks * panels.block_step
    )
    at_a_time = max(1, min(panels.blocks, room // block_step))
    at_a_time = ceildiv(panels.blocks, ceildiv(panels.blocks, at_a_time))
    turned = memory.scratch.new("points", at_a_time * block_step, "float32")

    def weights(first: Expr) -> None:
        """Transforms the weights of the blocks of channels from `first` on."""
        with parallel(at_a_time, panels.reduced) as (b, c):
            exists = first + b < panels.blocks if panels.blocks % at_a_time else True
            with when(exists):
                source = bind((first + b) * panels.block_step + c * block)
                target = bind(b * block_step + c * block)
                with serial(vectors) as v:
                    taps = load_taps(weight, panels, source + v * lanes, lanes)
                    store_points(G, taps, turned, target + v * lanes, slab, lanes)

    def inputs(x: Image, first: Expr) -> None:
        """Transforms the tiles of the groups from `first` on."""
        with parallel(tiling.chunk, tiling.rows) as (g, row):
            tile = bind((first + g) * tiling.rows + row)
            with when(tile < tiling.tiles):
                n, p, q = tiles.place(tile)
                p, q = bind(p - before[0]), bind(q - before[1])
                target = bind(g * group_step + row * step)
                with serial(reduced // lanes) as v:
                    values = load(x, n, v * lanes, (p, q), (size[2], size[3]), SIZE, lanes)
                    store_points(B, values, moved, target + v * lanes, point_step, lanes)

    def products(y: Image, first: Expr, first_block: Expr) -> None:
        with parallel(at_a_time, tiling.chunk) as (b, g):
            inside = first_block + b < panels.blocks if panels.blocks % at_a_time else True
            group = first + g
            if tiling.groups % tiling.chunk:
                inside = conjunction(inside, group < tiling.groups)
            with when(inside):
                scratch = Scratch()
                sums = scratch.new("sums", POINTS * tiling.rows * block, "float32")
                with serial(POINTS) as e, serial(tiling.rows // tiling.height) as part:
                    rows = bind(part * tiling.height)
                    acc = local("acc", tiling.height * block, "float32")
                    at = [
                        vector((i * vectors + v) * lanes, lanes)
                        for i in range(tiling.height)
                        for v in range(vectors)
                    ]
                    for register in at:
                        T.buffer_store(acc, zero("float32", lanes), [register])
                    left = bind(g * group_step + e * point_step + rows * step)
                    right = bind(b * block_step + e * slab)
                    with serial(panels.reduced) as c:
                        if asks:  # for the next point's weights and tiles
                            prefetch(turned, right + slab + c * block, level=2)
                            ahead = c * ceildiv(tiling.height * step, panels.reduced)
                            prefetch(moved, left + point_step + ahead, level=2)
                        terms = [
                            turned[vector(right + c * block + v * lanes, lanes)]
                            for v in range(vectors)
                        ]
                        values = [moved[int64(left + i * step + c)] for i in range(tiling.height)]
                        outer(acc, lanes, values, terms)
                    place = bind((e * tiling.rows + rows) * block)
                    for i, register in enumerate(at):
                        T.buffer_store(sums, acc[register], [vector(place + i * lanes, lanes)])
                with serial(tiling.rows) as row:
                    tile = bind(group * tiling.rows + row)
                    with when(tile < tiling.tiles):
                        n, p, q = tiles.place(tile)
                        with serial(vectors) as v:
                            outputs(y, sums, row, v, (n, p, q), first_block + b)
                scratch.keep()

    def outputs(
        y: Image, sums: Expr, row: Expr, v: Expr, place: tuple[Expr, Expr, Expr], b: Expr
    ) -> None:
        at = bind(row * block + v * lanes)
        values = load_points(A, sums, at, tiling.rows * block, lanes)
        store(y, place, b * block + v * lanes, tiles, values, lanes)

    once = at_a_time == panels.blocks
    if once:
        weights(0)
    with batch.each() as (_, _, (x, y)), serial(ceildiv(tiling.groups, tiling.chunk)) as number:
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
    tiles = Tiles(batch.images, problem.p, problem.q)
    slices, blocks = ceildiv(problem.c, lanes), panels.blocks
    tile_bytes = 4 * POINTS * (slices * lanes + blocks * block)
    chunk = max(1, CHUNK // tile_bytes)
    chunk = min(tiles.count, max(chunk, min(128, MOST_CHUNK // tile_bytes)))
    chunk = ceildiv(tiles.count, ceildiv(tiles.count, chunk))
    x_step = chunk * lanes + APART
    y_step = chunk * block + APART
    data = memory.scratch.new("data_points", slices * POINTS * x_step, "float32")
    grad = memory.scratch.new("grad_points", blocks * POINTS * y_step, "float32")
    height = min(tile_rows(m, vectors), lanes // 2)
    height = next(h for h in range(height, 0, -1) if lanes % h == 0)

    def inputs(x: Image, y: Image, first: Expr, count: Expr) -> None:
        with parallel(chunk) as (row,), when(row < count):
            n, p, q = tiles.place(bind(first + row))
            h, w = bind(p - problem.padding[0]), bind(q - problem.padding[1])
            with serial(slices) as v:
                values = load(x, n, v * lanes, (h, w), (problem.h, problem.w), SIZE, lanes)
                store_points(B, values, data, v * POINTS * x_step + row * lanes, x_step, lanes)
            with serial(blocks) as b, serial(vectors) as v:
                channel = b * block + v * lanes
                values = load(y, n, channel, (p, q), (problem.p, problem.q), TILE, lanes)
                place = b * POINTS * y_step + row * block + v * lanes
                store_points(A, values, grad, place, y_step, lanes)

    def products(is_first: Expr, count: Expr) -> None:
        with parallel(blocks, slices) as (b, c):
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
                left = bind((c * POINTS + e) * x_step + rows)
                right = bind((b * POINTS + e) * y_step)
                with serial(count) as t:
                    terms = [
                        grad[vector(right + t * block + v * lanes, lanes)] for v in range(vectors)
                    ]
                    values = [data[int64(left + t * lanes + i)] for i in range(height)]
                    outer(acc, lanes, values, terms)
                place = bind((e * lanes + rows) * block)
                for i, register in enumerate(at):
                    T.buffer_store(sums, acc[register], [vector(place + i * lanes, lanes)])
            exist = lanes
            if problem.c % lanes:
                exist = bind(T.min(int64(lanes), problem.c - c * lanes))
            with serial(exist) as row, serial(vectors) as v:
                outputs(
                    sums, is_first, bind(b * panels.block_step + (c * lanes + row) * block), row, v
                )
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

    chunks = ceildiv(tiles.count, chunk)
    with batch.each() as (part, _, (y, x)), serial(chunks) as number:
        first = bind(number * chunk)
        count = chunk
        if tiles.count % chunk:
            count = bind(T.min(int64(chunk), tiles.count - first))
        inputs(x, y, first, count)
        products(conjunction(part == 0, chunks == 1 or number == 0), count)
    memory.move_weight(weight, panels, False)
