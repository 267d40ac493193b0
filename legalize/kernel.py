"""`Kernel`: what a generator of kernels gives for a problem, with the choice that it made."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx


@dataclass(frozen=True)
class Kernel:
    """`func` : (first operand, second operand, result), destination-passing.  `name` : which of its
    target's kernels it is, as reports print it; `reason` : why that was chosen."""

    func: tirx.PrimFunc
    name: str
    reason: str
