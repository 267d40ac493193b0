"""Fills the memory that the virtual machine will hand out next with NaN.

The machine's allocator pools memory by device for the whole process: what is freed goes to a list
of its size, in whole pages, and is taken from there again.  So allocating through it, filling and
freeing leaves NaN where the next results and intermediates will lie.  All bits set is a NaN in
every float format.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.target import Target

from relay_wgrad.problem import ConvProblem
from tests.support.compiled import virtual_machine

COPIES = 8  # of each size: more than a second-order gradient holds at once
PAGE = 4096


@lru_cache
def _machine() -> Any:
    n = tirx.Var("n", "int64")
    shape = relax.Var("shape", relax.ShapeType([n]))
    bb = relax.BlockBuilder()
    with bb.function("fill", [shape]):
        with bb.dataflow():
            minus = relax.const(-1, "int8")
            out = bb.emit_output(relax.op.full(relax.ShapeExpr([n]), minus, "int8"))
        bb.emit_func_output(out)
    return virtual_machine(bb.get(), Target("llvm"))


def poison_bytes(sizes: set[int]) -> None:
    """Leaves `COPIES` free blocks of NaN of each size in bytes."""
    fill = _machine()["fill"]
    pages = {-(-size // PAGE) for size in sizes}
    # All at once, so that each is memory of its own.
    held = [fill(tvm.runtime.ShapeTuple([x * PAGE])) for x in pages for _ in range(COPIES)]
    del held


def poison(problem: ConvProblem) -> None:
    """The same for the sizes of the problem's tensors in any dtype, and for scalars."""
    counts = [math.prod(problem.canonical_shape(role)) for role in ("data", "weight", "grad")]
    poison_bytes({count * width for count in [*counts, 1] for width in (2, 4, 8)})
