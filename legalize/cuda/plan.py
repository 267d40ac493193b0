"""Which kernel a problem gets, its tile, and how often its sum is split.

By a model, since nothing is measured here: the time of a kernel is the number of rounds in which
the device works through its blocks, times a block's work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.target import Target

from relay_wgrad.problem import DTYPE_BYTES

from . import gemm, reduce
from .emitters import ceildiv
from .implicit_gemm import View

# Streaming multiprocessors, where the target does not say: an H100's or H200's.
PROCESSORS = 132
# A tiled product with fewer rows or columns than this wastes most of its smallest tile.
THIN = 4
# What a size is taken for while it is symbolic: a batch of images' worth of pixels.
GUESS = 1 << 14
# Partial sums are at least this many terms of the sum apart: each costs a write and a read.
TILE_TERMS = 8 * gemm.BK
LONE_TERMS = 256
MAX_SPLITS = 64
# Writing and reading a partial sum, in multiply-adds that a multiprocessor does meanwhile.
PART_COST = 54
MAX_SCRATCH = 1 << 28  # bytes


@dataclass(frozen=True)
class Plan:
    """`tile` for the tiled product; without one `outputs` per block for the direct kernel."""

    tile: gemm.Tile | None
    outputs: int
    splits: int

    @property
    def described(self) -> tuple[str, str]:
        """(name of the kernel, why it is that)."""
        if self.tile is None:
            reason = "few rows or columns of a product: each thread sums for its own result"
            return "reduction", reason
        return "product", f"a matrix product in tiles of {self.tile.bm}x{self.tile.bn}"


def plan_of(view: View, target: Target | None) -> Plan:
    """The cheapest by the model."""
    processors = _processors(target)
    batches, M, N, K = (_number(view.size(axes)) for axes in (view.batch, view.m, view.n, view.k))
    bytes_each = DTYPE_BYTES[view.problem.accum_dtype]
    scratch = max(1, MAX_SCRATCH // (batches * M * N * bytes_each))
    if min(M, N) <= THIN:
        return _direct(view, batches * M * N, K, processors, scratch)
    best: tuple[float, Plan] | None = None
    for tile in gemm.TILES:
        tiles = batches * ceildiv(M, tile.bm) * ceildiv(N, tile.bn)
        splits = _splits(tiles, K // TILE_TERMS, 2 * processors, scratch)
        rounds = ceildiv(tiles * splits, processors)
        cost = rounds * tile.bm * tile.bn * ceildiv(K, splits) / tile.efficiency
        if splits > 1:
            cost += splits * batches * M * N / processors * PART_COST
        if best is None or cost < best[0]:
            best = cost, Plan(tile, 0, splits)
    assert best is not None
    return best[1]


def _direct(view: View, total: int, K: int, processors: int, scratch: int) -> Plan:
    wanted = 4 * processors
    result = view.problem.roles[2]
    if ceildiv(total, reduce.THREADS) >= wanted or K < reduce.THREADS // 32 * 4:
        return Plan(None, reduce.THREADS, 1)
    # wgrad's operands are contiguous along pixels unless along channels: there one result has
    # the whole block.
    pixels = result == "weight" and view.fast("grad") != "k"
    outputs = 1 if pixels else 32
    blocks = ceildiv(total, outputs)
    return Plan(None, outputs, _splits(blocks, K // LONE_TERMS, wanted, scratch))


def _splits(blocks: int, longest: int, wanted: int, scratch: int) -> int:
    """Enough to give `wanted` blocks, if the sum is long enough."""
    return max(1, min(ceildiv(wanted, blocks), longest, MAX_SPLITS, scratch))


def _number(size: Any) -> int:
    return size if isinstance(size, int) else GUESS


def _processors(target: Target | None) -> int:
    count = target.attrs.get("multi_processor_count") if target is not None else None
    return int(count) if count else PROCESSORS
