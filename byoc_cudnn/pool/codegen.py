"""The C++ of poolings, as `codegen.direct` has it: a kernel for each window and dtype."""

from __future__ import annotations

import re

from ..codegen.direct import ELEMENTS, Family
from ..codegen.templates import shared
from .call import DTYPES, PoolCall, check

_PREFIX = "relay_wgrad_pool_"
_NAME = re.compile(rf"{_PREFIX}(forward|backward)_({'|'.join(DTYPES)})_(\d+)x(\d+)_(\d+)x(\d+)")


def kernel_of(call: PoolCall) -> str:
    """The name of the kernel that serves a call; padding is told when it runs."""
    window, strides = ("x".join(map(str, pair)) for pair in (call.kernel, call.strides))
    return f"{_PREFIX}{call.direction}_{call.dtype}_{window}_{strides}"


def _body(name: str) -> str:
    found = _NAME.fullmatch(name)
    if not found:
        raise ValueError(f"{name!r} is no kernel of a pooling")
    direction, dtype, *sizes = found.groups()
    parts = [shared("device_maxima.h"), POOLS.template("pool_device.h")]
    return POOLS.exported(name, parts, f"{direction}<{ELEMENTS[dtype][1]}, {', '.join(sizes)}>")


def _row(call: PoolCall) -> str:
    words = " ".join(
        f"{name}={','.join(map(str, value))}"
        for name, value in (
            ("kernel", call.kernel), ("strides", call.strides), ("padding", call.padding),
        )
    ) + " index" * call.index  # fmt: skip
    numbers = ", ".join(
        "{" + ", ".join(map(str, v)) + "}" for v in (call.kernel, call.strides, call.padding)
    )
    kernel = kernel_of(call)
    return (
        f'    {{"max_pool2d {call.direction} {call.dtype} {words}", {kernel}, "{kernel}",\n'
        f"     Element::{ELEMENTS[call.dtype][0]}, {numbers},"
        f" {str(call.direction == 'backward').lower()}, {str(call.index).lower()}}},"
    )


POOLS = Family(
    "pool", "Max pooling and its gradient", "Pool", "RelayWgradPoolKernel", check, _row, kernel_of,
    _body,
)  # fmt: skip
