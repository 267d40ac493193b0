"""Products of many small matrices on a CPU, as an attention has them: C[b] = A[b] B[b].

Both matrices of a product stay in a core's caches, so nothing is packed: a tile of C waits in
registers, a row of B's is read as vectors and A's column as scalars.  Tiles are cut from C's rows,
the last one smaller; where vectors do not divide its columns, the last ones begin earlier and
compute some columns again, to the same bits.  A task has a tile's rows and all columns, so no two
tasks write the same element, and no order of terms depends on their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as T

from relay_wgrad.graph.shared_tasks import with_shared_tasks
from relay_wgrad.ir import FINISHED

from .emitters.loops import (
    Expr,
    argument,
    bind,
    ceildiv,
    flat,
    local,
    one_core,
    outer,
    parallel,
    serial,
    vector,
    when,
    zero,
)
from .emitters.tiles import heights, tile_rows
from .machine import Machine, machine

_VECTORS = 2  # of a tile's row: more would compute more columns twice


def batches(sizes: Sequence[int], dtype: str, target: Target) -> tirx.PrimFunc:
    """The kernel of products of matrices: (A [b, m, k], B [b, k, n], C [b, m, n]), for any b.

    sizes : m, n, k.  dtype : of all three, float32 or float64.  target : of kind llvm.
    """
    m = machine(target)
    with one_core(m.cores == 1), IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr(FINISHED)
        rows, columns, terms = sizes
        count = tirx.Var("b", "int64")
        shapes = {"a": (count, rows, terms), "b": (count, terms, columns),
                  "c": (count, rows, columns)}  # fmt: skip
        # All arguments come before the first name for the memory of one.
        given = [argument(name, dtype, shape) for name, shape in shapes.items()]
        buffers = [flat(x, dtype, shape) for x, shape in zip(given, shapes.values(), strict=True)]
        _write(buffers, sizes, dtype, count, m)
    return with_shared_tasks(builder.get(), m.threads)


def _write(
    buffers: Sequence[Any], sizes: Sequence[int], dtype: str, count: Expr, m: Machine
) -> None:
    a, b, c = buffers
    rows, columns, terms = sizes
    lanes = min(m.lanes(dtype), 1 << (columns.bit_length() - 1))
    vectors = _VECTORS if columns >= _VECTORS * lanes else 1
    block = lanes * vectors
    tiles = ceildiv(rows, min(tile_rows(m, vectors), 16))
    height = ceildiv(rows, tiles)
    with parallel(count, ceildiv(rows, height)) as (n, tile):
        for high, there in heights(rows, height, tile):
            with when(there):
                first = bind((n * rows + tile * height) * terms)
                target = bind((n * rows + tile * height) * columns)
                with serial(ceildiv(columns, block)) as i:
                    column = bind(
                        T.min(i * block, columns - block) if columns % block else i * block
                    )
                    acc = local("acc", high * block, dtype)
                    for v in range(high * vectors):
                        T.buffer_store(acc, zero(dtype, lanes), [vector(v * lanes, lanes)])
                    at = bind(n * (terms * columns) + column)
                    with serial(terms) as k:
                        row = [
                            b[vector(at + k * columns + v * lanes, lanes)] for v in range(vectors)
                        ]
                        outer(acc, lanes, [a[first + r * terms + k] for r in range(high)], row)
                    for r in range(high):
                        for v in range(vectors):
                            place = target + r * columns + column + v * lanes
                            value = acc[vector((r * vectors + v) * lanes, lanes)]
                            T.buffer_store(c, value, [vector(place, lanes)])
