"""The C++ of batched products, by `codegen.direct`: host code alone, which calls cuBLAS."""

from __future__ import annotations

from ..codegen.direct import ELEMENTS, Family
from .call import WORDS, BatchedProductsCall, check


def _row(call: BatchedProductsCall) -> tuple[str, str]:
    places = ", ".join(
        f"{{{at.lead}, {at.step}, {at.first}, {int(at.turned)}}}" for at in call.places
    )
    types = ", ".join(ELEMENTS[d][0] for d in (call.dtype, call.result))
    sizes = ", ".join(map(str, (call.b, call.m, call.n, call.k)))
    return call.problem, f"{types}, {int(call.tf32)}, {sizes}, {{{places}}}, {call.filled}"


BATCHED_PRODUCTS = Family(
    "batched_products", "Products of many matrices, by cuBLAS", "BatchedProducts", check, WORDS,
    _row,
)  # fmt: skip
