"""A block-tiled matrix product on CUDA cores, for a `View`, with an optional split of its sum.

A block computes a BM x BN tile of C.  Its 256 threads bring BM x BK and BK x BN of the operands
into shared memory, converted to the accumulator's dtype and zero where a predicate fails, and each
adds the products into a register micro-tile.  Where the tiles are fewer than the device can hold
and the sum is long (wgrad's runs over every pixel of the batch), it is split over blocks whose
partial sums go to scratch memory and are added in a fixed order by a second kernel: the result is
the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.tirx.script import builder as T

from .emitters import Expr, Kernels, Registers, ceildiv, digits, guarded, int64, when
from .implicit_gemm import View

THREADS = 256
BK = 16
# Between rows of a tile in shared memory: threads that store along k then hit more banks.  It
# keeps rows aligned for the vector loads.  Tiles are flat arrays, since TVM would cut the skew
# off a two-dimensional one as unused.
SKEW = 4
LANES = 4  # elements that a thread takes side by side: a 128-bit access for float32


@dataclass(frozen=True)
class Tile:
    """A block's tile, its threads' micro-tile, and how near to peak it runs (a rough guess)."""

    bm: int
    bn: int
    tm: int
    tn: int
    efficiency: float


# Larger micro-tiles do more multiplications per load from shared memory; narrow tiles waste less
# of a narrow matrix.  The efficiencies only rank them against each other.
TILES = (
    Tile(128, 128, 8, 8, 1.0),
    Tile(64, 64, 4, 4, 0.7),
    Tile(128, 32, 4, 4, 0.6),
    Tile(32, 128, 4, 4, 0.6),
    Tile(256, 16, 4, 4, 0.45),
    Tile(16, 256, 4, 4, 0.45),
)


def write(e: Kernels, view: View, tile: Tile, splits: int, buffers: dict[str, Expr]) -> None:
    """The kernel, and the one that sums its parts if it is split."""
    problem = view.problem
    accum = problem.accum_dtype
    result = problem.roles[2]
    M, N, K = view.size(view.m), view.size(view.n), view.size(view.k)
    batches = view.size(view.batch)
    tiles = [ceildiv(M, tile.bm), ceildiv(N, tile.bn)]
    steps = ceildiv(ceildiv(K, BK), splits)
    parts = e.scratch("parts", splits * batches * M * N, accum) if splits > 1 else None

    with e.launch(splits * batches * tiles[0] * tiles[1], THREADS) as block:
        split, batch, tile_m, tile_n = digits(block, [splits, batches, *tiles])
        grouped = view.index(view.batch, batch)
        a = e.shared("a_tile", BK * (tile.bm + SKEW), accum)
        b = e.shared("b_tile", BK * (tile.bn + SKEW), accum)
        acc = e.registers("acc", tile.tm * tile.tn, accum)
        with e.stage() as t, e.unrolled(tile.tm * tile.tn) as i:
            acc.set(t, i, _zero(accum))
        with T.serial(0, int64(steps)) as step:
            k0 = (split * steps + step) * BK
            with e.stage() as t:
                sides = ((a, view.first, view.m, tile_m, tile.bm, M),
                         (b, view.second, view.n, tile_n, tile.bn, N))  # fmt: skip
                for shared, role, axes, number, width, bound in sides:
                    with e.unrolled(width * BK // THREADS) as i:
                        element = t + i * THREADS
                        # Neighbouring threads read neighbouring elements.
                        if view.fast(role) in view.k:
                            x, k = element // BK, element % BK
                        else:
                            x, k = element % width, element // width
                        row, column = number * width + x, k0 + k
                        index = {**grouped, **view.index(axes, row), **view.index(view.k, column)}
                        guards, _, where = view.access(role, index)
                        value = guarded(
                            [row < bound, column < K, *guards], buffers[role][where], accum
                        )
                        T.buffer_store(shared, value, [k * (width + SKEW) + x])
            with e.stage() as t:
                _multiply(e, tile, t, a, b, acc)
        with e.stage() as t, e.unrolled(tile.tm) as i, e.unrolled(tile.tn) as j:
            m = tile_m * tile.bm + _place(t // (tile.bn // tile.tn), i, tile.bm)
            n = tile_n * tile.bn + _place(t % (tile.bn // tile.tn), j, tile.bn)
            value = acc.get(t, i * tile.tn + j)
            if parts is not None:
                with when([m < M, n < N]):
                    T.buffer_store(parts, value, [((split * batches + batch) * M + m) * N + n])
            else:
                index = {**grouped, **view.index(view.m, m), **view.index(view.n, n)}
                guards, _, where = view.access(result, index)
                with when([m < M, n < N, *guards]):
                    T.buffer_store(buffers[result], value.astype(problem.dtype(result)), where)
    if parts is not None:
        _sum_parts(e, view, splits, parts, buffers[result])


def _place(thread: Expr, i: Expr, width: int) -> Expr:
    """Row (column) i of a thread's micro-tile: runs of LANES, so that its loads are vectors."""
    return i // LANES * (width // 2) + thread * LANES + i % LANES


def _multiply(e: Kernels, tile: Tile, t: Expr, a: Expr, b: Expr, acc: Registers) -> None:
    accum = a.dtype
    fragments = [T.alloc_buffer((count,), accum, scope="local") for count in (tile.tm, tile.tn)]
    across = tile.bn // tile.tn
    with e.unrolled(BK) as k:
        for fragment, shared, thread, width, count in (
            (fragments[0], a, t // across, tile.bm, tile.tm),
            (fragments[1], b, t % across, tile.bn, tile.tn),
        ):
            for run in range(count // LANES):
                start = k * (width + SKEW) + run * (width // 2) + thread * LANES
                with T.vectorized(0, int64(LANES)) as lane:
                    T.buffer_store(fragment, shared[start + lane], [run * LANES + lane])
        with e.unrolled(tile.tm) as i, e.unrolled(tile.tn) as j:
            at = i * tile.tn + j
            acc.set(t, at, acc.get(t, at) + fragments[0][i] * fragments[1][j])


def _sum_parts(e: Kernels, view: View, splits: int, parts: Expr, out: Expr) -> None:
    """One thread per element adds the splits' partial sums in their order."""
    problem = view.problem
    result = problem.roles[2]
    sizes = [view.size(view.batch), view.size(view.m), view.size(view.n)]
    total = sizes[0] * sizes[1] * sizes[2]
    with e.launch(ceildiv(total, THREADS), THREADS) as block:
        acc = e.registers("acc", 1, problem.accum_dtype)
        with e.stage() as t:
            element = block * THREADS + t
            batch, m, n = digits(element, sizes)
            index = {
                **view.index(view.batch, batch),
                **view.index(view.m, m),
                **view.index(view.n, n),
            }
            guards, _, where = view.access(result, index)
            with when([element < total, *guards]):
                acc.set(t, 0, _zero(problem.accum_dtype))
                with T.serial(0, int64(splits)) as split:
                    acc.set(t, 0, acc.get(t, 0) + parts[split * total + element])
                value = acc.get(t, 0).astype(problem.dtype(result))
                T.buffer_store(out, value, where)


def _zero(dtype: str) -> Expr:
    return T.float64(0) if dtype == "float64" else T.float32(0)
