"""fprop and dgrad: one core, since both sum weights over pixels at affine positions (`axes`).

The core keeps a tile of pixels times a block of output channels in registers and runs over taps
and input channels.  Positions off the image are zeros of the border of the operand's copy.  Where
nothing else is a reason for a copy there is none: tiles at the edges read other pixels there, and
drop these products.
"""

from __future__ import annotations

import math
from dataclasses import replace

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ..emitters.axes import Axis
from ..emitters.memory import NO_BORDER, Memory
from ..emitters.slabs import Slabs
from ..emitters.tiles import (
    Tile,
    cache_sets_conflict,
    channel_block,
    even_tile,
    pixel_tile,
    row_tile,
)
from ..machine import Machine
from .blocked import Blocked
from .core import Core, stay_near
from .stage import stage

# Input channels of a 1 x 1 kernel from which on fewer loads matter more than fewer tiles.
_DEEP = 64
# Pixels of a tile that may lack a column of taps, for each input channel and in the mean of tiles:
# their sums are kept at each tap.  With 0.2 (5x5 of 8 channels, 28 columns) a kernel took up to 1.2
# of its time with a copy, with 3 (1x31 of 2) three times as long; with 0.1 it was the same.
MOST_EDGES = 1 / 8
# Tiles of one row must save so much of the work: they load more.
_FEWER = 0.75


def write(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel: operands in, core, result out."""
    dgrad = problem.kind is ConvKind.DGRAD
    operand, _, result = problem.roles
    groups = problem.groups
    size, out = problem.canonical_shape(operand), problem.canonical_shape(result)
    reduced, channels = size[1] // groups, out[1] // groups
    axes = [
        Axis(
            dgrad, size[2 + i], out[2 + i], problem.taps[i],
            problem.strides[i], problem.dilation[i], problem.padding[i],
        )
        for i in range(problem.rank)
    ]  # fmt: skip
    depth = axes.pop(0) if problem.rank == 3 else None
    vectors, lanes = channel_block(m, memory.accum, channels)
    # Few pixels and many channels in a register tile need fewer loads, and cope with pixels that
    # compete for cache lines; many pixels suit short rows, which they divide better.
    bytes_ = DTYPE_BYTES[memory.accum]
    step = groups * reduced * axes[1].scale * bytes_
    pointwise = set(problem.taps) == {1}
    if (pointwise and reduced >= _DEEP) or cache_sets_conflict(
        m, pixel_tile(m, vectors, 1, axes[1].count)[1], step
    ):
        vectors, lanes = channel_block(m, memory.accum, channels, wide=True)
    # A tile of a vector has many pixels, which each block reads again: 5 or 7 vectors of channels
    # are better filled up where these pixels do not stay in a level-1 cache.
    row = axes[-2].count * axes[-1].count
    held = pixel_tile(m, 1, 1, row)[1] * reduced * bytes_
    if pointwise and vectors == 1 and not m.has_few_registers and held > m.l1_bytes // 2:
        vectors, lanes = channel_block(m, memory.accum, channels, wide=True, least=2)
    columns = None
    plain = pointwise and problem.strides == (1, 1) and problem.padding == NO_BORDER
    if plain and problem.is_static and groups == 1 and not m.has_few_registers:
        pixels = out[0] * math.prod(out[2:])
        given = vectors, pixel_tile(m, vectors, 1, pixels)[1]
        chosen = even_tile(m, memory.accum, channels, pixels, reduced, given, step)
        if chosen != given and channels >= lanes:
            vectors, columns = chosen
    block = vectors * lanes
    (top, bottom), (left, right) = (axis.border() for axis in axes)
    lane = "I" if dgrad else "O"
    # One thread, or two, read copies as fast.
    in_place = m.shares and not m.has_few_registers
    found = memory.weights_in_place(lane, channels, reduced, block) if in_place else None
    weight, panels = found or (
        None, memory.copied_panels(lane, groups, channels, reduced, block),
    )  # fmt: skip
    few = m.has_few_registers and lanes == m.lanes(memory.accum)
    tile, are_near = _tile(m, axes, vectors, lanes), stay_near(m, panels, memory.accum)
    as_it_is = memory.operand(operand, groups, reduced)
    # With few registers groups of tiles, whose weights are in a level-1 cache, are as fast as tiles
    # one by one with weights in the level-2 cache; these are faster without a copy.
    has_edges = (
        (top, left, bottom, right) != NO_BORDER and not as_it_is.is_copied and not depth
        and tile.rows == 1 and _edges(axes[1], tile) <= MOST_EDGES * reduced
        and (are_near or not few)
    )  # fmt: skip
    blocked = few and not has_edges
    # A tile of few registers may be of several planes, and so reads some that are not there.
    deep = depth.border() if depth and blocked else (0, 0)
    tensors = [
        memory.operand(operand, groups, reduced, border=(top, left, bottom, right), deep=deep),
        memory.result(groups, channels),
    ]
    near = []
    if has_edges:
        near = [] if are_near else tensors[:1]
        tensors[0] = as_it_is
    bands = None
    if not blocked and not plain:
        of_band = (1 if depth else problem.n) * groups * panels.blocks
        bands = stage(memory, tensors[1], axes, tile, of_band, m.cores)
    if bands:
        tensors[1] = replace(tensors[1], is_copied=False)
    slabs = batch = None
    slab_bytes = memory.slab_bytes(panels)
    if depth and not blocked and memory.image_bytes(*tensors) > slab_bytes:
        slabs = Slabs(memory, depth, slab_bytes, *tensors)
    else:
        batch = memory.batch(*tensors, near=near)
    *_, height, width = out
    merged = streams = False
    if batch and plain:
        # 1 x 1 convolutions are matrix products: the pixels of an image are one row, and if the
        # batch is known and images follow each other, so are those of all images.
        images = batch.images if problem.is_static else problem.n
        merged = all(tensor.is_dense(images, height, width) for tensor in batch.tensors)
        if all(tensor.has_dense_rows(width) for tensor in batch.tensors):
            height, width = 1, height * width * (images if merged else 1)
            streams = True  # also what stays in a cache: another core has written it
        axes = [Axis(False, length, length, 1, 1, 1, 0) for length in (height, width)]
    core: Blocked | Core
    in_tasks = False  # whether each copies the weights that it reads
    if blocked:
        core = Blocked(problem, m, memory.accum, axes, row_tile(m, vectors, lanes), depth)
    else:
        tile = _tile(m, axes, vectors, lanes, columns if merged else None)
        core = Core(problem, m, memory.accum, axes, tile, streams, depth, bands, has_edges)
        if not found and batch and batch.is_whole:
            count = 1 if merged else problem.n
            in_tasks = core.copies_weights(memory, panels, dgrad, count)
    if not found and not in_tasks:
        weight = memory.copied_weight(panels, dgrad)
    if slabs:
        assert isinstance(core, Core)
        with slabs.each() as (planes, (x, y), lines):
            core.write(x, y, weight, panels, 1, planes, lines)
        return
    assert batch is not None
    with batch.each() as (_, count, (x, y)):
        core.write(x, y, weight, panels, 1 if merged else count)


def _tile(
    m: Machine, axes: list[Axis], vectors: int, lanes: int, columns: int | None = None
) -> Tile:
    rows, wide = pixel_tile(m, vectors, axes[0].count, axes[1].count)
    columns = columns or wide
    if axes[0].phases == 1 and axes[0].rows_of_taps(1) < _FEWER * axes[0].rows_of_taps(rows):
        rows = 1  # taps off the image are left out where they miss all rows of a tile
    return Tile(rows, columns, vectors, lanes)


def _edges(columns: Axis, tile: Tile) -> float:
    """Pixels of an edge's tile that may lack a column of taps, times the share of such tiles."""
    tiles = -(-columns.count // tile.columns)
    at_edge = sum(-(-outputs // tile.columns) for outputs in columns.edges)
    return min(sum(columns.edges), tile.columns) * min(at_edge, tiles) / tiles
