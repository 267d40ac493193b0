"""`CastTransposeCall`: casts and transpositions of many tensors, in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from relay_wgrad.dtypes import MIXED

from ..codegen.kernel_names import Words, known
from ..decision import YES, Decision, no

DTYPES = MIXED
WORDS: Words = {"source": DTYPES, "result": DTYPES}
LIMIT = 1 << 30  # elements of a tensor


@dataclass(frozen=True)
class Transposition:
    """One tensor: (blocks, rows, columns) becomes (blocks, columns, rows)."""

    blocks: int
    rows: int
    columns: int

    @property
    def count(self) -> int:
        """Elements."""
        return self.blocks * self.rows * self.columns

    @staticmethod
    def of(sizes: Sequence[int], axes: Sequence[int]) -> Transposition | None:
        """What a permutation of a tensor's axes is; None where it is more than a transposition.

        >>> Transposition.of((64, 32, 3, 3), (0, 2, 3, 1))  # OIHW to OHWI
        Transposition(blocks=64, rows=32, columns=9)
        """
        runs: list[list[int]] = []  # of axes that stay side by side
        for axis in axes:
            if sizes[axis] == 1:
                continue
            last = runs[-1][-1] if runs else -2
            between = range(last + 1, axis)
            if last >= 0 and axis > last and all(sizes[a] == 1 for a in between):
                runs[-1].append(axis)
            else:
                runs.append([axis])
        lengths = {run[0]: math.prod(sizes[a] for a in run) for run in runs}
        first = [run[0] for run in runs]
        order = [sorted(first).index(axis) for axis in first]
        inner = [lengths[axis] for axis in sorted(first)]
        if order == list(range(len(order))):
            return Transposition(1, 1, math.prod(inner))
        if order == [1, 0]:
            return Transposition(1, *inner)
        if order == [0, 2, 1]:
            return Transposition(*inner)
        return None


@dataclass(frozen=True)
class CastTransposeCall:
    """All tensors of a call, of one dtype, to tensors of one dtype.

    operands: each tensor[, a float32 scalar that each element is multiplied by] -> each result
    """

    symbol: str
    source: str
    result: str
    tensors: tuple[Transposition, ...]
    scaled: bool = False


def check(call: CastTransposeCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    for step in call.tensors:
        if not 0 < step.count < LIMIT:
            return no(f"{step}: from 1 to {LIMIT - 1} elements")
    return YES if call.tensors else no("no tensor")
