"""A direct kernel for products too thin to tile: depthwise, and few channels per group.

A block has `outputs` elements of the result side by side and THREADS / outputs threads for each,
which share its sum and add their parts in shared memory, pairwise, in a fixed order.  With one
thread per element the sum is a plain loop nest.  As in the tiled product a long sum can be split
over blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from .emitters import Expr, Kernels, ceildiv, digits, guarded, int64, when
from .implicit_gemm import View

THREADS = 256


def write(e: Kernels, view: View, outputs: int, splits: int, buffers: dict[str, Expr]) -> None:
    """The kernel, and the one that sums its parts if it is split."""
    problem = view.problem
    accum, result = problem.accum_dtype, problem.roles[2]
    axes = view.counting_order()
    total = view.size(axes)
    K = view.size(view.k)
    sharing = THREADS // outputs
    parts = e.scratch("parts", splits * total, accum) if splits > 1 else None

    def store(element: Expr, value: Expr) -> None:
        guards, _, where = view.access(result, view.index(axes, element))
        with when(guards):
            T.buffer_store(buffers[result], value.astype(problem.dtype(result)), where)

    blocks = ceildiv(total, outputs)
    with e.launch(blocks * splits, THREADS) as block:
        split, number = digits(block, [splits, blocks])
        acc = e.registers("acc", 1, accum)
        partial = e.shared("partial", sharing * outputs, accum) if sharing > 1 else None
        with e.stage() as t:
            element = number * outputs + t % outputs
            own = view.index(axes, element)
            acc.set(t, 0, tirx.const(0, accum))
            with when([element < total]):
                lone = sharing == 1 and splits == 1
                with _terms(view, K, t // outputs, sharing, split, splits, lone) as (k, guards):
                    index = {**own, **k}
                    first, _, at_a = view.access(problem.roles[0], index)
                    second, _, at_b = view.access(problem.roles[1], index)
                    a = buffers[problem.roles[0]][at_a].astype(accum)
                    b = buffers[problem.roles[1]][at_b].astype(accum)
                    term = guarded([*guards, *first, *second], a * b, accum)
                    acc.set(t, 0, acc.get(t, 0) + term)
            if partial is not None:
                T.buffer_store(partial, acc.get(t, 0), [t])
        width = sharing
        while partial is not None and width > 1:
            width //= 2
            with e.stage() as t, when([t < width * outputs]):
                T.buffer_store(partial, partial[t] + partial[t + width * outputs], [t])
        with e.stage() as t:
            element = number * outputs + t % outputs
            with when([t < outputs, element < total]):
                value = acc.get(t, 0) if partial is None else partial[t]
                if parts is not None:
                    T.buffer_store(parts, value, [split * total + element])
                else:
                    store(element, value)
    if parts is None:
        return
    with e.launch(ceildiv(total, THREADS), THREADS) as block:
        acc = e.registers("acc", 1, accum)
        with e.stage() as t:
            element = block * THREADS + t
            with when([element < total]):
                acc.set(t, 0, tirx.const(0, accum))
                with T.serial(0, int64(splits)) as part:
                    acc.set(t, 0, acc.get(t, 0) + parts[part * total + element])
                store(element, acc.get(t, 0))


@contextlib.contextmanager
def _terms(
    view: View, K: Expr, share: Expr, sharing: int, split: Expr, splits: int, lone: bool
) -> Iterator[tuple[dict[str, Expr], Sequence[Expr]]]:
    """The terms of one thread's part of the sum: the index on each axis, and whether it exists."""
    if lone:
        with contextlib.ExitStack() as stack:
            index = {x: stack.enter_context(T.serial(0, int64(view.sizes[x]))) for x in view.k}
            yield index, []
        return
    steps = ceildiv(ceildiv(K, sharing), splits)
    with T.serial(0, int64(steps)) as step:
        k = (split * steps + step) * sharing + share
        yield view.index(view.k, k), [k < K]
