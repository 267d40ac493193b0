"""`CastTransposeCall`: casts and transpositions of many tensors, in one launch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from relay_wgrad.dtypes import MIXED

from ..codegen.kernel_names import Words, known
from ..decision import YES, Decision, no

DTYPES = MIXED
WORDS: Words = {"source": DTYPES, "result": DTYPES}
LIMIT = 1 << 30  # elements of a tensor


@dataclass(frozen=True)
class Transposition:
    """One tensor: (blocks, rows, columns) becomes (blocks, columns, rows).

    fills : nothing, or of each of these three sizes two widths: every so many elements along it
        become so many, zeros behind them or those at their end left out; (1, 1) where none do.
        The sizes are those before.
    """

    blocks: int
    rows: int
    columns: int
    fills: tuple[tuple[int, int], ...] = ()

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Before."""
        return self.blocks, self.rows, self.columns

    @property
    def results(self) -> tuple[int, int, int]:
        """What the sizes become."""
        fills = self.fills or ((1, 1),) * 3
        blocks, rows, columns = (
            size // width * filled for size, (width, filled) in zip(self.sizes, fills, strict=True)
        )
        return blocks, rows, columns

    @property
    def count(self) -> int:
        """Elements of the source or of the result, whichever has more."""
        return max(math.prod(self.sizes), math.prod(self.results))


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

    @property
    def filled(self) -> bool:
        """Whether axes are filled up or cut, of some tensors at least."""
        return any(step.fills for step in self.tensors)


def check(call: CastTransposeCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    for step in call.tensors:
        if not 0 < step.count < LIMIT:
            return no(f"{step}: from 1 to {LIMIT - 1} elements")
        pairs = list(zip(step.sizes, step.fills, strict=True)) if step.fills else []
        if any(min(fill) < 1 or size % fill[0] for size, fill in pairs):
            return no(f"{step}: fills that its sizes are no multiples of")
    return YES if call.tensors else no("no tensor")
