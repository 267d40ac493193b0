"""The C++ of such gradients, by `codegen.direct`: a kernel for each dtype."""

from __future__ import annotations

import re

from ..codegen.direct import ELEMENTS, Family
from .call import DTYPES, PointWeightsCall, check

_PREFIX = "relay_wgrad_point_weights_"
_NAME = re.compile(rf"{_PREFIX}({'|'.join(DTYPES)})")


def kernel_of(call: PointWeightsCall) -> str:
    """The name of the kernel that serves a call."""
    return f"{_PREFIX}{call.dtype}"


def _body(name: str) -> str:
    found = _NAME.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r} is no kernel of weights' gradients")
    return POINT_WEIGHTS.exported(
        name, [POINT_WEIGHTS.template("point_weights_device.h")],
        f"point_weights<{ELEMENTS[found[1]][1]}>",
    )  # fmt: skip


def _row(call: PointWeightsCall) -> str:
    kernel = kernel_of(call)
    sizes = ", ".join(f"{{{p.n}, {p.k}, {p.c}, {int(p.biased)}}}" for p in call.products)
    return (
        f'    {{"{len(call.products)} weights of one pixel {call.dtype}", {kernel}, "{kernel}",\n'
        f"     Element::{ELEMENTS[call.dtype][0]}, {{{sizes}}}}},"
    )


POINT_WEIGHTS = Family(
    "point_weights", "Weight gradients of one pixel", "PointWeights",
    "RelayWgradPointWeightsKernel", check, _row, kernel_of, _body,
)  # fmt: skip
