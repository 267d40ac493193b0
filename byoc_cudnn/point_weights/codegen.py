"""The C++ of such gradients, by `codegen.direct`: a kernel for each dtype."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from .call import WORDS, PointWeightsCall, check


def _body(dtype: str, tail: str) -> tuple[Sequence[str], str] | None:
    text = POINT_WEIGHTS.template("point_weights_device.h")
    return None if tail else ([text], f"point_weights<{ELEMENTS[dtype][1]}>")


def _row(call: PointWeightsCall) -> tuple[str, str]:
    sizes = ", ".join(f"{{{p.n}, {p.k}, {p.c}, {int(p.biased)}}}" for p in call.products)
    words = f"{len(call.products)} weights of one pixel {call.dtype}"
    return words, f"{ELEMENTS[call.dtype][0]}, {{{sizes}}}"


POINT_WEIGHTS = Family(
    "point_weights", "Weight gradients of one pixel", "PointWeights", check, WORDS, _row, _body
)  # fmt: skip
