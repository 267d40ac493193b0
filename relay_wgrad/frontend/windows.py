"""Kernels, strides, dilations and padding of one ONNX node, read and checked.

What a file gets wrong of a window is refused here, before any arithmetic with it: a stride of zero
would be a division by zero further on.  Whether a convolution's parts fit each other is no question
of the front ends: `conventions.onnx` asks it.
"""

from __future__ import annotations

from typing import Any

from ..conventions.common import extent
from ..conventions.onnx import same
from .context import Node, shape_of

Quad = tuple[int, int, int, int]


def pair(node: Node, name: str, default: int | None = 1, least: int = 1) -> tuple[int, int]:
    """A setting of the two spatial axes, at least `least`; required if there is no default."""
    given = node.attr(name, None if default is None else (default, default))
    if given is None:
        raise ValueError(f"{name} is missing")
    values = [int(v) for v in given]
    if len(values) != 2:
        raise ValueError(f"{name}={values}: only images (two spatial axes) are supported")
    if min(values) < least:
        raise ValueError(f"{name}={values}: must be at least {least}")
    return values[0], values[1]


def weight_of(expr: Any) -> tuple[int, int, int, int]:
    """A convolution's weight, (K, C/groups, R, S) or as the transposed one has it."""
    shape = shape_of(expr)
    if len(shape) != 4:
        raise ValueError(f"weight of shape {list(shape)}: only 2-D convolutions are supported")
    return shape[0], shape[1], shape[2], shape[3]


def image(expr: Any) -> tuple[int, int, int, int]:
    """(N, C, H, W)."""
    shape = shape_of(expr)
    if len(shape) != 4:
        raise ValueError(f"expected an (N, C, H, W) tensor, got shape {list(shape)}")
    return shape[0], shape[1], shape[2], shape[3]


def padding_of(
    node: Node,
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
) -> Quad:
    """(top, left, bottom, right) from `pads` or `auto_pad`; ONNX's order is the same."""
    auto = node.attr("auto_pad", "NOTSET")
    if auto == "NOTSET":
        pads = [int(p) for p in node.attr("pads") or (0, 0, 0, 0)]
        if len(pads) != 4 or min(pads) < 0:
            raise ValueError(f"pads={pads}: expected four sizes that are not negative")
        return pads[0], pads[1], pads[2], pads[3]
    if auto == "VALID":
        return 0, 0, 0, 0
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"unknown auto_pad {auto!r}")
    (top, bottom), (left, right) = (
        same(auto, size[i], extent(kernel[i], dilation[i]), strides[i]) for i in range(2)
    )
    return top, left, bottom, right


def check_window(size: tuple[int, int], kernel: tuple[int, int], pad: Quad) -> None:
    """Raises ValueError for a window of pooling that does not fit even once."""
    for i in range(2):
        if size[i] + pad[i] + pad[i + 2] < kernel[i]:
            raise ValueError(
                f"a {kernel[0]}x{kernel[1]} window does not fit a {size[0]}x{size[1]} image "
                f"with padding {pad}: the image is too small"
            )
