"""fprop, dgrad and wgrad by Winograd's algorithm; see `winograd` for the algebra.

Transformed operands are large, 36 numbers for 16, so tiles go through in pieces of a size that
caches hold.  A task of fprop or dgrad transforms what its piece reads, multiplies it with blocks of
channels, and transforms the sums back, all of that in its level-2 cache; weights are transformed
once for all.  wgrad's sums are over all pieces: some at a time are transformed by all cores, as
many as their level-2 caches hold, before tasks multiply them, each for a block of channels.  The
same operations in the same order make each result, whatever the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

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
    A,
    B,
    G,
    Pieces,
    Where,
    even,
    first_pixel,
)
from .parts import Points, Transforms, Window, window, written

# Bytes that fprop and dgrad take for weights, unless a single block of channels needs more; of
# transformed tiles at a time in wgrad; and rows of a piece there, at least.
_TOTAL, _MOST_CHUNK, _LEAST_ROWS = 63 << 20, 8 << 20, 16
# Rows of a piece of fprop or dgrad, the first of those that are as good.
_ROWS = (28, 14, 20, 40, 56, 80, 112, 160, 224)
# In multiplications: to transform a number; and to read a transformed weight for a piece, if all
# of them are more than half of a level-2 cache, or so many times it, and come from memory.
_MOVED, _NEAR, _FAR, _BEYOND = 800, 8, 32, 8
# Cores among which lines go as fast as they are read; weights that a task transforms at a time, in
# channels; and in multiplications: to transform one, and to read and write a sum again.
_SHARING, PART, _TURNED, _AGAIN = 4, 64, 250, 4

# ---- fprop and dgrad ---------------------------------------------------------------------------


def write_affine(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """A task transforms what a piece reads, multiplies it with all blocks of channels or some, and
    transforms back: all of that in its level-2 cache."""
    dgrad = problem.kind is ConvKind.DGRAD
    operand, _, result = problem.roles
    size, out = problem.canonical_shape(operand), problem.canonical_shape(result)
    lanes = m.lanes("float32")
    transforms = Transforms.of(problem, lanes)
    vectors, _ = channel_block(m, "float32", out[1])
    block = vectors * lanes
    panels = memory.copied_panels("I" if dgrad else "O", 1, out[1], size[1], block)
    weight = memory.copied_weight(panels, dgrad)
    batch = memory.batch(
        memory.operand(operand, 1, size[1], block=lanes), memory.result(1, out[1], block=block)
    )
    reduced = ceildiv(size[1], lanes) * lanes
    before = first_pixel(problem)
    step = reduced + APART
    taps = problem.t if problem.rank == 3 else 1
    room = (_TOTAL - batch.bytes) // 4 - panels.blocks * panels.block_step
    whole = POINTS * (taps * panels.reduced * block + APART)
    at_a_time = even(panels.blocks, max(1, room // whole))
    cut = best_cut(problem, m, batch.images, at_a_time)
    if cut.owns:
        at_a_time = panels.blocks
    pieces, parts = cut.pieces, cut.parts
    slab = taps * cut.length * block + APART  # of one point's weights, for a block of channels
    block_step = POINTS * slab
    shared = None if cut.owns else memory.scratch.new("points", at_a_time * block_step, "float32")
    height = register_rows(m, vectors, pieces.size)
    rows = padded(pieces.size, height)
    point_step = (rows + pieces.read - pieces.size) * step + APART

    def weight_vectors(turned: Expr, source: Expr, target: Expr) -> None:
        """Transforms a block's weights of a channel."""
        with serial(vectors) as v:
            taps_of = Window(weight, source + v * lanes, (panels.r_step, panels.s_step))
            transforms.evaluate(G, taps_of, Points(turned, target + v * lanes, slab))

    def weights(turned: Expr, first: Expr) -> None:
        """Transforms the weights of the blocks of channels from `first` on, for all tasks."""
        grid = parallel(at_a_time, taps, panels.reduced)
        with grid as (b, t, c), when(_exists(first + b, panels.blocks, at_a_time)):
            source = bind((first + b) * panels.block_step + t * panels.t_step + c * block)
            target = bind(b * block_step + (t * panels.reduced + c) * block)
            weight_vectors(turned, source, target)

    def own_weights(turned: Expr, b: Expr, some: Expr) -> None:
        """Transforms some of a block's weights for one task."""
        with serial(cut.length) as c:
            source = bind(b * panels.block_step + (some * cut.length + c) * block)
            weight_vectors(turned, source, bind(c * block))

    def inputs(x: Image, moved: Expr, first: Where) -> None:
        """Transforms what a piece reads."""
        with serial(pieces.read) as row:
            (n, d, p, q), on, is_tile = pieces.operand(first, row)
            with when(is_tile):
                corner = n, d, bind(p - before[0]), bind(q - before[1])
                target = bind(row * step)
                with serial(reduced // lanes) as v:
                    read = window(x, corner, v * lanes, size[-2:], on)
                    transforms.evaluate(B, read, Points(moved, target + v * lanes, point_step))

    def products(
        moved: Expr, sums: Expr, first: Where, turned: Expr, block_at: Expr, some: Expr
    ) -> None:
        """The products of a piece with a block of channels, of the weights that are there."""
        with serial(POINTS) as e, serial(rows // height) as part:
            own = bind(part * height)
            acc = local("acc", height * block, "float32")
            at = [vector(i * lanes, lanes) for i in range(height * vectors)]
            place = bind((e * rows + own) * block)
            for i, register in enumerate(at):
                before = zero("float32", lanes)
                if cut.length < panels.reduced:
                    there = sums[vector(place + i * lanes, lanes)]
                    before = T.if_then_else(some == 0, before, there)
                T.buffer_store(acc, before, [register])
            left = bind(e * point_step + own * step + some * cut.length)
            right = bind(block_at + e * slab)
            low, high = pieces.reached(first, own, height)
            with serial(high, low) as t, serial(cut.length) as c:
                tap = bind(left + t * (pieces.tap * step))
                panel = bind(right + (t * cut.length + c) * block)
                # The next point's weights and tiles.
                prefetch(turned, panel + slab, level=2)
                prefetch(moved, tap + point_step + c * height * step // cut.length, level=2)
                terms = [turned[vector(panel + v * lanes, lanes)] for v in range(vectors)]
                values = [moved[int64(tap + i * step + c)] for i in range(height)]
                outer(acc, lanes, values, terms)
            for i, register in enumerate(at):
                T.buffer_store(sums, acc[register], [vector(place + i * lanes, lanes)])

    def outputs(y: Image, sums: Expr, first: Where, b: Expr) -> None:
        """Transforms the sums of a piece and a block of channels."""
        with serial(pieces.size) as row:
            place, exists = pieces.result(first, row)
            with when(exists), serial(vectors) as v:
                points = Points(sums, bind(row * block + v * lanes), rows * block)
                transforms.combine(A, points, written(y, place, b * block + v * lanes, out[-2:]))

    once = at_a_time == panels.blocks
    if once and shared is not None:
        weights(shared, 0)
    with batch.each() as (_, _, (x, y)), serial(ceildiv(panels.blocks, at_a_time)) as part:
        first_block = bind(part * at_a_time)
        if not once:
            weights(shared, first_block)
        with parallel(pieces.count, parts) as (piece, share):
            scratch = Scratch()
            moved = scratch.new("tiles", POINTS * point_step, "float32")
            sums = scratch.new("sums", POINTS * rows * block, "float32")
            turned = scratch.new("points", block_step, "float32") if shared is None else shared
            first = pieces.first(piece)
            inputs(x, moved, first)
            with serial(ceildiv(at_a_time, parts)) as i:
                own = bind(share * ceildiv(at_a_time, parts) + i)
                exists = conjunction(
                    _exists(own, at_a_time, ceildiv(at_a_time, parts)),
                    _exists(first_block + own, panels.blocks, at_a_time),
                )
                with when(exists):
                    if shared is None:
                        with serial(panels.reduced // cut.length) as some:
                            own_weights(turned, own, some)
                            products(moved, sums, first, turned, 0, some)
                    else:
                        products(moved, sums, first, turned, own * block_step, 0)
                    outputs(y, sums, first, bind(first_block + own))
            scratch.keep()


def _exists(number: Expr, count: int, at_a_time: int) -> Expr:
    """Whether there is such a number, where some at a time are taken."""
    return number < count if count % at_a_time else True


class Cut(NamedTuple):
    """Tasks of fprop or dgrad: a piece of the tiles, and one of `parts` of the blocks of channels.

    owns : whether tasks transform their own weights.
    length : channels whose weights are transformed and multiplied at a time.
    """

    pieces: Pieces
    parts: int
    owns: bool
    length: int


def best_cut(problem: ConvProblem, m: Machine, images: int, blocks: int) -> Cut:
    """Tasks that should take the least time.

    Longer pieces read weights less often, and shorter ones stay in a level-2 cache; those and parts
    are even work for more cores.  Many cores wait for each other's lines: there tasks may transform
    weights themselves, as often as there are pieces.
    """
    operand, _, result = problem.roles
    reduced, channels = (problem.canonical_shape(role)[1] for role in (operand, result))
    vectors, lanes = channel_block(m, "float32", channels)
    block = vectors * lanes
    weights = POINTS * reduced * channels * (problem.t if problem.rank == 3 else 1)
    times = 4 * weights / m.l2_bytes
    near = _FAR if times > _BEYOND else _NEAR if times > 0.5 else 0
    reading = near * max(1.0, m.cores / _SHARING)  # of what all share many have less

    def bytes_of(cut: Cut) -> int:
        pieces = cut.pieces
        held = pieces.read * (reduced + APART) + pieces.size * block
        return 4 * POINTS * (held + (cut.length * block if cut.owns else 0))

    def cycles(cut: Cut) -> float:
        pieces, parts = cut.pieces, cut.parts
        rows = padded(pieces.size, register_rows(m, vectors, pieces.size))
        transforms = _MOVED * (pieces.read * reduced + pieces.size * channels / parts)
        transforms *= 1 + bytes_of(cut) / (2 * m.l2_bytes)
        if cut.owns:
            own = (_TURNED + _AGAIN * pieces.size * POINTS / cut.length) * reduced * channels
            transforms += own / parts
        task = (rows + (0 if cut.owns else reading)) * weights / parts + transforms
        return m.rounds(pieces.count * parts) * task

    whole = Pieces.of(problem, images, 1 << 30)
    of_core = ceildiv(whole.size * whole.count, m.cores)  # a piece, or two, for each core
    equal = [rows for rows in (of_core, ceildiv(of_core, 2)) if min(_ROWS) < rows < max(_ROWS)]
    pieces = [Pieces.of(problem, images, rows) for rows in (*_ROWS, *equal)]
    all_blocks = ceildiv(channels, block)
    found = [
        Cut(one, count, False, reduced)
        for count in _divisors(blocks) for one in pieces
    ]  # fmt: skip
    if problem.rank == 2 and reduced % PART == 0 and m.cores > _SHARING:
        found += [Cut(one, count, True, PART) for count in _divisors(all_blocks) for one in pieces]
    fit = [one for one in found if bytes_of(one) * m.cores <= _TOTAL]
    return min(fit or [min(found, key=bytes_of)], key=cycles)


def _divisors(count: int) -> list[int]:
    return [x for x in range(1, count + 1) if count % x == 0]


def register_rows(m: Machine, vectors: int, rows: int) -> int:
    """Of a register tile, so that tiles cut so many rows evenly."""
    return even(rows, min(tile_rows(m, vectors), 14))


def padded(rows: int, height: int) -> int:
    """Rows of whole register tiles; those too many are never read."""
    return ceildiv(rows, height) * height


# ---- wgrad -------------------------------------------------------------------------------------


def write_wgrad(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    lanes = m.lanes("float32")
    transforms = Transforms.of(problem, lanes)
    vectors, _ = channel_block(m, "float32", problem.k)
    block = vectors * lanes
    batch = memory.batch(
        memory.operand("grad", 1, problem.k, block=block),
        memory.operand("data", 1, problem.c, block=lanes),
    )
    weight, panels = memory.panels("O", 1, problem.k, problem.c, block)
    slices, blocks = ceildiv(problem.c, lanes), panels.blocks
    row_bytes = 4 * POINTS * (slices * lanes + blocks * block)
    rows = max(_LEAST_ROWS, min(_MOST_CHUNK, m.l2_bytes * m.cores // 2) // row_bytes)
    pieces = Pieces.of(problem, batch.images, rows)
    some = even(pieces.count, max(1, rows // pieces.read))  # at a time
    read = pieces.read
    x_step = some * read * lanes + APART
    y_step = some * pieces.size * block + APART
    data = memory.scratch.new("data_points", slices * POINTS * x_step, "float32")
    grad = memory.scratch.new("grad_points", blocks * POINTS * y_step, "float32")
    height = min(tile_rows(m, vectors), lanes // 2)
    height = next(h for h in range(height, 0, -1) if lanes % h == 0)
    # A task has a slice of channels, or some rows of it where there are not enough for the cores.
    own = height if blocks * slices * pieces.taps < 2 * m.cores else lanes
    before = first_pixel(problem)

    def inputs(x: Image, y: Image, first: Expr, count: Expr) -> None:
        """Transforms some pieces; what is not there is zeros."""
        with parallel(some, read) as (i, row), when(i < count if pieces.count % some else True):
            where = pieces.first(bind(first + i))
            (n, d, p, q), on, is_tile = pieces.operand(where, row)
            corner = n, d, bind(p - before[0]), bind(q - before[1])
            target = bind((i * read + row) * lanes)
            with serial(slices) as v:
                exists = conjunction(on, is_tile)
                tiles = window(x, corner, v * lanes, (problem.h, problem.w), exists)
                points = Points(data, v * POINTS * x_step + target, x_step)
                transforms.evaluate(B, tiles, points)
            with when(row < pieces.size if pieces.depth else True):
                place, exists = pieces.result(where, row)
                target = bind((i * pieces.size + row) * block)
                with serial(blocks) as b, serial(vectors) as v:
                    channel = b * block + v * lanes
                    size = problem.p, problem.q
                    there = b * POINTS * y_step + target + v * lanes
                    tiles = window(y, place, channel, size, exists)
                    transforms.evaluate(A, tiles, Points(grad, there, y_step))

    def products(is_first: Expr, first: Expr, count: Expr) -> None:
        with parallel(blocks, slices, lanes // own, pieces.taps) as (b, c, piece, tap):
            scratch = Scratch()
            sums = scratch.new("sums", POINTS * own * block, "float32")
            first_row = bind(piece * own)
            with serial(POINTS) as e, serial(own // height) as part:
                rows = bind(part * height)
                acc = local("acc", height * block, "float32")
                at = [
                    vector((i * vectors + v) * lanes, lanes)
                    for i in range(height)
                    for v in range(vectors)
                ]
                for register in at:
                    T.buffer_store(acc, zero("float32", lanes), [register])
                left = (c * POINTS + e) * x_step + first_row + rows
                left = bind(left + tap * (pieces.tap * lanes))
                right = bind((b * POINTS + e) * y_step)
                with serial(count) as i:
                    low, high = pieces.met(pieces.first(bind(first + i)), tap)
                    here = bind(left + i * (read * lanes))
                    there = bind(right + i * (pieces.size * block))
                    with serial(high, low) as t:
                        # The next point's tiles.
                        for line in range(0, block, m.line("float32")):
                            prefetch(grad, there + y_step + t * block + line, level=2)
                        prefetch(data, here + x_step + t * lanes, level=2)
                        terms = [
                            grad[vector(there + t * block + v * lanes, lanes)]
                            for v in range(vectors)
                        ]
                        values = [data[int64(here + t * lanes + j)] for j in range(height)]
                        outer(acc, lanes, values, terms)
                place = bind((e * own + rows) * block)
                for i, register in enumerate(at):
                    T.buffer_store(sums, acc[register], [vector(place + i * lanes, lanes)])
            exist: Expr = own
            channel = bind(c * lanes + first_row)
            if problem.c % lanes:
                exist = bind(T.max(T.min(int64(own), problem.c - channel), int64(0)))
            with serial(exist) as row, serial(vectors) as v:
                target = b * panels.block_step + tap * panels.t_step + (channel + row) * block
                outputs(sums, is_first, bind(target), row, v)
            scratch.keep()

    def outputs(sums: Expr, is_first: Expr, target: Expr, row: Expr, v: Expr) -> None:
        at = bind(row * block + v * lanes)
        taps = Window(weight, target + v * lanes, (panels.r_step, panels.s_step))
        transforms.combine(G, Points(sums, at, own * block), taps, is_first)

    chunks = ceildiv(pieces.count, some)
    with batch.each() as (part, _, (y, x)), serial(chunks) as number:
        first = bind(number * some)
        count = some
        if pieces.count % some:
            count = bind(T.min(int64(some), pieces.count - first))
        inputs(x, y, first, count)
        products(conjunction(part == 0, chunks == 1 or number == 0), first, count)
    memory.move_weight(weight, panels, False)
