"""`PointWeightsCall`: weight gradients of many convolutions of one pixel, in one launch."""

from __future__ import annotations

from dataclasses import dataclass

from relay_wgrad.dtypes import MIXED

from ..codegen.kernel_names import Words, known
from ..decision import YES, Decision, no

DTYPES = MIXED
WORDS: Words = {"dtype": DTYPES}
MOST = 1 << 26
"""Products of a weight's gradient: libraries are faster for more of them."""


@dataclass(frozen=True)
class Product:
    """One weight: dw[k, c] = sum over n of dy[n, k] x[n, c], and with `biased` the sums of dy.

    n : rows.  k, c : filters and channels.
    """

    n: int
    k: int
    c: int
    biased: bool = False

    @property
    def count(self) -> int:
        """Products of two numbers."""
        return self.n * self.k * self.c


@dataclass(frozen=True)
class PointWeightsCall:
    """All products of a call, of one dtype.

    operands: each dy, each x -> each dw, each biased one's db

    Sums are float32, dw is rounded to the dtype once; db is float32.
    """

    symbol: str
    dtype: str
    products: tuple[Product, ...]

    @property
    def biases(self) -> int:
        """How many products have one."""
        return sum(product.biased for product in self.products)


def check(call: PointWeightsCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    for product in call.products:
        if min(product.n, product.k, product.c) < 1 or product.count > MOST:
            return no(f"{product}: from 1 to {MOST} products")
    return YES if call.products else no("no weight")
