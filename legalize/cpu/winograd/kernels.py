"""fprop, dgrad and wgrad by Winograd's algorithm; see `winograd` for the algebra.

Transformed operands are large, 36 numbers for 16, so tiles go through in pieces of a size that
caches hold.  A task of fprop or dgrad transforms what its piece reads, multiplies it with blocks of
channels, and transforms the sums back, all of that in its level-2 cache; weights are transformed
once for all.  wgrad's sums are over all pieces: some at a time are transformed by all cores, as
many as their level-2 caches hold, before tasks multiply them, each for a block of channels.  The
same operations in the same order make each result, whatever the number of threads.
"""

from __future__ import annotations

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
    weight, panels = memory.panels("I" if dgrad else "O", 1, out[1], size[1], block)
    memory.move_weight(weight, panels, True, reverse=dgrad)
    batch = memory.batch(
        memory.operand(operand, 1, size[1], block=lanes), memory.result(1, out[1], block=block)
    )
    reduced = ceildiv(size[1], lanes) * lanes
    before = first_pixel(problem)
    step = reduced + APART
    taps = problem.t if problem.rank == 3 else 1
    slab = taps * panels.reduced * block + APART  # of one point's weights, for a block of channels
    block_step = POINTS * slab
    room = (_TOTAL - batch.bytes) // 4 - panels.blocks * panels.block_step
    at_a_time = even(panels.blocks, max(1, room // block_step))
    turned = memory.scratch.new("points", at_a_time * block_step, "float32")
    pieces, parts = _work(problem, m, batch.images, at_a_time)
    height = register_rows(m, vectors, pieces.size)
    rows = padded(pieces.size, height)
    point_step = (rows + pieces.read - pieces.size) * step + APART

    def weights(first: Expr) -> None:
        """Transforms the weights of the blocks of channels from `first` on."""
        grid = parallel(at_a_time, taps, panels.reduced)
        with grid as (b, t, c), when(_exists(first + b, panels.blocks, at_a_time)):
            source = (first + b) * panels.block_step + t * panels.t_step + c * block
            source = bind(source)
            target = bind(b * block_step + (t * panels.reduced + c) * block)
            with serial(vectors) as v:
                taps_of = Window(weight, source + v * lanes, (panels.r_step, panels.s_step))
                transforms.evaluate(G, taps_of, Points(turned, target + v * lanes, slab))

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

    def products(moved: Expr, sums: Expr, first: Where, b: Expr) -> None:
        """The products of a piece with a block of channels."""
        with serial(POINTS) as e, serial(rows // height) as part:
            own = bind(part * height)
            acc = local("acc", height * block, "float32")
            at = [vector(i * lanes, lanes) for i in range(height * vectors)]
            for register in at:
                T.buffer_store(acc, zero("float32", lanes), [register])
            left = bind(e * point_step + own * step)
            right = bind(b * block_step + e * slab)
            low, high = pieces.reached(first, own, height)
            with serial(high, low) as t, serial(panels.reduced) as c:
                tap = bind(left + t * (pieces.tap * step))
                panel = bind(right + (t * panels.reduced + c) * block)
                # The next point's weights and tiles.
                prefetch(turned, panel + slab, level=2)
                prefetch(moved, tap + point_step + c * height * step // reduced, level=2)
                terms = [turned[vector(panel + v * lanes, lanes)] for v in range(vectors)]
                values = [moved[int64(tap + i * step + c)] for i in range(height)]
                outer(acc, lanes, values, terms)
            place = bind((e * rows + own) * block)
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
    if once:
        weights(0)
    with batch.each() as (_, _, (x, y)), serial(ceildiv(panels.blocks, at_a_time)) as part:
        first_block = bind(part * at_a_time)
        if not once:
            weights(first_block)
        with parallel(pieces.count, parts) as (piece, share):
            scratch = Scratch()
            moved = scratch.new("tiles", POINTS * point_step, "float32")
            sums = scratch.new("sums", POINTS * rows * block, "float32")
            first = pieces.first(piece)
            inputs(x, moved, first)
            with serial(ceildiv(at_a_time, parts)) as i:
                own = bind(share * ceildiv(at_a_time, parts) + i)
                exists = conjunction(
                    _exists(own, at_a_time, ceildiv(at_a_time, parts)),
                    _exists(first_block + own, panels.blocks, at_a_time),
                )
                with when(exists):
                    products(moved, sums, first, own)
                    outputs(y, sums, first, bind(first_block + own))
            scratch.keep()


def _exists(number: Expr, count: int, at_a_time: int) -> Expr:
    """Whether there is such a number, where some at a time are taken."""
    return number < count if count % at_a_time else True


def _work(problem: ConvProblem, m: Machine, images: int, blocks: int) -> tuple[Pieces, int]:
    """(pieces, parts of the blocks of channels): tasks that should take the least time.

    Longer pieces read weights less often, and shorter ones stay in a level-2 cache; those and parts
    are even work for more cores.
    """
    operand, _, result = problem.roles
    reduced, channels = (problem.canonical_shape(role)[1] for role in (operand, result))
    vectors, lanes = channel_block(m, "float32", channels)
    weights = POINTS * reduced * channels * (problem.t if problem.rank == 3 else 1)
    times = 4 * weights / m.l2_bytes
    reading = _FAR if times > _BEYOND else _NEAR if times > 0.5 else 0

    def bytes_of(pieces: Pieces) -> int:
        return 4 * POINTS * (pieces.read * (reduced + APART) + pieces.size * vectors * lanes)

    def cycles(pieces: Pieces, parts: int) -> float:
        rows = padded(pieces.size, register_rows(m, vectors, pieces.size))
        transforms = _MOVED * (pieces.read * reduced + pieces.size * channels / parts)
        transforms *= 1 + bytes_of(pieces) / (2 * m.l2_bytes)
        task = (rows + reading) * weights / parts + transforms
        return ceildiv(pieces.count * parts, m.cores) * task

    whole = Pieces.of(problem, images, 1 << 30)
    of_core = ceildiv(whole.size * whole.count, m.cores)  # a piece, or two, for each core
    equal = [rows for rows in (of_core, ceildiv(of_core, 2)) if min(_ROWS) < rows < max(_ROWS)]
    pieces = [Pieces.of(problem, images, rows) for rows in (*_ROWS, *equal)]
    fit = [one for one in pieces if bytes_of(one) * m.cores <= _TOTAL]
    parts = [count for count in range(1, blocks + 1) if blocks % count == 0]
    found = [(one, count) for count in parts for one in fit or [min(pieces, key=bytes_of)]]
    return min(found, key=lambda one: cycles(*one))


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
