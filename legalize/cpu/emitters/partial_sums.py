"""Sums that are split among tasks, for even work on all cores.

Each part has memory of its own, and the parts are added in a fixed order: results do not depend on
the number of threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tvm.tirx.script import builder as T

from .loops import Expr, is_worth_waking, local, one_core, parallel, serial, vector, zero
from .memory import Memory


def is_even(tasks: int, cores: int) -> bool:
    """Whether so many tasks keep all cores at work, more or less."""
    return tasks % cores == 0 or tasks >= 4 * cores


def splits_for(tasks: int, cores: int, units: Expr) -> int:
    """Parts of each task's sum over `units`."""
    splits = next(x for x in range(1, 4 * cores + 1) if is_even(tasks * x, cores))
    return min(splits, units) if isinstance(units, int) else splits


@contextlib.contextmanager
def parts_of(total: Expr, memory: Memory, size: int, splits: int, lanes: int) -> Iterator[Expr]:
    """Memory for `splits` arrays of `size` elements, whose sum is in `total` at the end."""
    if splits == 1:
        yield total
        return
    accum = memory.problem.accum_dtype
    parts = memory.scratch.new("parts", splits * size, accum)
    yield parts
    alone = contextlib.nullcontext() if is_worth_waking(splits * size) else one_core(True)
    with alone, parallel(size // lanes) as (i,):
        acc = local("acc", lanes, accum)
        at = vector(0, lanes)
        T.buffer_store(acc, zero(accum, lanes), [at])
        with serial(splits) as part:
            term = parts[vector(part * size + i * lanes, lanes)]
            T.buffer_store(acc, acc[at] + term, [at])
        T.buffer_store(total, acc[at], [vector(i * lanes, lanes)])
