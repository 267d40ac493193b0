"""`AttentionCall`: softmax(q kᵀ scale) v of many matrices, or its gradient, and where they lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

from relay_wgrad.dtypes import HALVES

from ..codegen.kernel_names import Words, known
from ..codegen.templates import constants
from ..decision import Decision, no
from ..softmax.call import Added, check_added

DIRECTIONS = ("forward", "backward")
OUTER = constants("attention", "attention_call.h")["kOuter"]
"""Axes of a call's matrices."""
PLACED = {
    "forward": ("q", "k", "v", "out"),
    "backward": ("q", "k", "v", "out", "dout", "dq", "dk", "dv"),
}
"""The tensors of a call that have places; the last ones are written: out, or dq, dk and dv."""
WRITTEN = {"forward": 1, "backward": 3}
WIDTHS = range(8, 129, 8)
OLDEST = 80  # the first GPUs that copy into shared memory while they multiply
WORDS: Words = {"direction": DIRECTIONS, "dtype": HALVES, "width": tuple(map(str, WIDTHS))}
_MOST = (1 << 31) - 1


@dataclass(frozen=True)
class Place:
    """Where a tensor's matrices are, in elements: the first, from one to the next along each of
    their axes, and from one row to the next; columns are side by side."""

    first: int
    steps: tuple[int, ...]
    row: int


@dataclass(frozen=True)
class AttentionCall:
    """Many matrices q of (rows, width), k and v of (columns, width).

    forward: q, k, v, what is added... -> out, logarithms
        scores = q kᵀ scale + what is added, out = softmax(scores) v, and of each of q's rows the
        logarithm, of base 2, of what softmax divides by
    backward: q, k, v, out, logarithms, dout, what is added... -> results..., [ds,] inner
        p = 2 ** (scores log2(e) - logarithms), inner = the sum of dout out of each row,
        dv = pᵀ dout, ds = p (dout vᵀ - inner), dq = ds k scale, dk = dsᵀ q scale

    sizes : how many matrices along each of `OUTER` axes; the first is 0 where it is known when it
        runs, by the logarithms.
    places : of the direction's tensors (`PLACED`).
    results : of each that is written the number of the result that has it: dq, dk and dv may be
        parts of one tensor.
    added : rows are those of q, matrix after matrix.
    wide : whether there is ds, the gradient of what is added, in float32.
    """

    symbol: str
    direction: str
    dtype: str
    width: str
    sizes: tuple[int, ...]
    rows: int
    columns: int
    scale: float
    places: tuple[Place, ...]
    results: tuple[int, ...] = (0,)
    added: tuple[Added, ...] = ()
    wide: bool = False

    @property
    def problem(self) -> str:
        """In a line, for people."""
        sizes = "x".join(str(n or "N") for n in self.sizes)
        return (
            f"attention {self.direction} {sizes} rows={self.rows} columns={self.columns}"
            f" width={self.width} {self.dtype}"
            + (f" added={len(self.added)}" if self.added else "")
        )


def check(call: AttentionCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    if len(call.sizes) != OUTER or min(call.sizes) < 0 or 0 in call.sizes[1:]:
        return no(f"matrices of {call.sizes}: {OUTER} axes, of which the first may be unknown")
    if not 0 < min(call.rows, call.columns) <= max(call.rows, call.columns, *call.sizes) <= _MOST:
        return no(f"{call.rows} rows, {call.columns} columns: from 1 to {_MOST}")
    if not 0 < call.scale < math.inf:
        return no(f"scale {call.scale}: not above 0")
    if len(call.places) != len(PLACED[call.direction]):
        return no(f"{len(call.places)} places, expected {len(PLACED[call.direction])}")
    for name, at in zip(PLACED[call.direction], call.places, strict=True):
        if len(at.steps) != OUTER or min(at.first, *at.steps) < 0 or at.row < int(call.width):
            return no(f"{name} {at}: its rows overlap")
    written = WRITTEN[call.direction]
    if len(call.results) != written or set(call.results) != set(range(max(call.results) + 1)):
        return no(f"results {call.results}: the number of each of {written}")
    if call.wide and call.direction == "forward":
        return no("a gradient of scores is of backward calls")
    return check_added(call.added)
