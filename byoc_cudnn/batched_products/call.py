"""`BatchedProductsCall`: c = a b for each of many matrices, and where they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from relay_wgrad.dtypes import FLOATS, HALVES
from relay_wgrad.problem import SHORT

from ..codegen.kernel_names import Words, known
from ..decision import YES, Decision, no

WORDS: Words = {"dtype": FLOATS, "result": FLOATS}
LEAST = 1 << 12  # products of two numbers: with fewer, what is before and after is better fused
_MOST = (1 << 31) - 1  # of what cuBLAS takes as an int


@dataclass(frozen=True)
class Matrices:
    """Where the matrices of a tensor are, in elements.

    turned : whether columns are side by side in memory, else rows.
    lead : from one row, or column, to the next.
    step : from one matrix to the next; 0 where all are one.
    first : where the first begins.
    """

    lead: int
    step: int
    turned: bool = False
    first: int = 0


@dataclass(frozen=True)
class BatchedProductsCall:
    """c[i] = a[i] b[i] of (m, k) and (k, n) matrices; sums are float32, or float64 of float64.

    a, b -> c

    b : how many, 0 where that is known when it runs, by c's size.
    dtype, result : of the operands and of c.
    tf32 : whether float32 operands may be rounded to tf32.
    filled : elements behind each of c's rows, or columns, that are nobody's and are not written.
    places : of a, b and c.
    """

    symbol: str
    dtype: str
    result: str
    b: int
    m: int
    n: int
    k: int
    places: tuple[Matrices, Matrices, Matrices]
    tf32: bool = False
    filled: int = 0

    @property
    def problem(self) -> str:
        """In a line, for people."""
        turned = "".join(name for name, at in zip("abc", self.places, strict=True) if at.turned)
        dtypes = "/".join(SHORT[d] for d in (self.dtype, self.dtype, self.result))
        shared = "".join(name for name, at in zip("ab", self.places, strict=False) if not at.step)
        return (
            f"matmul b={self.b or 'N'} m={self.m} n={self.n} k={self.k}"
            f" turned={turned or '-'} shared={shared or '-'} dtype={dtypes}"
            + " tf32" * self.tf32
            + (f" filled={self.filled}" if self.filled else "")
        )


def check(call: BatchedProductsCall) -> Decision:
    """Whether cuBLAS computes a call, or why it is left."""
    if not (decision := known(call, WORDS)):
        return decision
    if call.result != call.dtype and not (call.dtype in HALVES and call.result == "float32"):
        return no(f"{call.result} of {call.dtype}; there are its own, and float32 of halves")
    sizes = (call.m, call.n, call.k)
    if min(sizes) < 2:
        return no(f"m={call.m} n={call.n} k={call.k}: a vector")
    if max(*sizes, *(at.lead for at in call.places)) > _MOST:
        return no(f"m={call.m} n={call.n} k={call.k}: rows of more than {_MOST} elements")
    if (call.b or 1) * call.m * call.n * call.k < LEAST:
        return no(f"b={call.b} m={call.m} n={call.n} k={call.k}: fewer than {LEAST} products")
    extents = ((call.m, call.k), (call.k, call.n), (call.m, call.n))
    for name, at, (rows, columns) in zip("abc", call.places, extents, strict=True):
        if at.lead < (rows if at.turned else columns) or min(at.step, at.first) < 0:
            return no(f"{name} {at}: its rows overlap")
    if call.places[2].step < 1 and call.b != 1:
        return no("c has one place for all")
    return YES
