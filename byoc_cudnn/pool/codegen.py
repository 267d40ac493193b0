"""The C++ of poolings, as `codegen.direct` has it: a kernel for each window and dtype.

Padding is told when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from ..codegen.templates import shared
from .call import WORDS, PoolCall, check


def _body(
    direction: str, dtype: str, kernel: str, strides: str, tail: str
) -> tuple[Sequence[str], str] | None:
    sizes = [*kernel.split("x"), *strides.split("x")]
    if tail or len(sizes) != 4:
        return None
    parts = [shared("device_maxima.h"), POOLS.template("pool_device.h")]
    return parts, f"{direction}<{ELEMENTS[dtype][1]}, {', '.join(sizes)}>"


def _row(call: PoolCall) -> tuple[str, str]:
    windows = {"kernel": call.kernel, "strides": call.strides, "padding": call.padding}
    texts = {name: ", ".join(map(str, value)) for name, value in windows.items()}
    told = " ".join(f"{name}={text.replace(' ', '')}" for name, text in texts.items())
    words = f"max_pool2d {call.direction} {call.dtype} {told}" + " index" * call.index
    words += f" {call.slice[0]}+of{call.slice[1]}" if call.slice else ""
    numbers = ", ".join(f"{{{text}}}" for text in texts.values())
    flags = ", ".join(str(one).lower() for one in (call.direction == "backward", call.index))
    part = ", ".join(map(str, call.slice))
    return words, f"{ELEMENTS[call.dtype][0]}, {numbers}, {flags}, {{{part}}}"


POOLS = Family(
    "pool", "Max pooling and its gradient", "Pool", check, WORDS, _row, _body
)  # fmt: skip
