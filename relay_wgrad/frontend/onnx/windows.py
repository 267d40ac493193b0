"""Kernels, strides, dilations and padding of one ONNX node, read and checked.

What a file gets wrong of a window is refused here, before any arithmetic with it: a stride of zero
would be a division by zero further on.  Whether a convolution's parts fit each other is no question
of the front ends: `conventions.onnx` asks it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...conventions.common import extent
from ...conventions.onnx import same
from .node import Node


def per_axis(
    node: Node, name: str, count: int, default: int | None = 1, least: int = 1
) -> tuple[int, ...]:
    """A setting of so many spatial axes, at least `least`; required if there is no default."""
    given = node.attr(name, None if default is None else (default,) * count)
    if given is None:
        raise ValueError(f"{name} is missing")
    values = [int(v) for v in given]
    if len(values) != count:
        raise ValueError(f"{name}={values}: must have {count} values, one for each spatial axis")
    if min(values) < least:
        raise ValueError(f"{name}={values}: must be at least {least}")
    return tuple(values)


def padding_of(
    node: Node,
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Padding before each axis, then after each, from `pads` or `auto_pad`: ONNX's order, too."""
    auto, rank = node.attr("auto_pad", "NOTSET"), len(size)
    if auto == "NOTSET":
        pads = [int(p) for p in node.attr("pads") or (0,) * (2 * rank)]
        if len(pads) != 2 * rank or min(pads) < 0:
            raise ValueError(f"pads={pads}: expected {2 * rank} sizes that are not negative")
        return tuple(pads)
    if auto == "VALID":
        return (0,) * (2 * rank)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"unknown auto_pad {auto!r}")
    ends = [same(auto, size[i], extent(kernel[i], dilation[i]), strides[i]) for i in range(rank)]
    return (*(before for before, _ in ends), *(after for _, after in ends))
