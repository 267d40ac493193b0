"""Kernels, strides, dilations and padding of one ONNX node, read and checked.

What a file gets wrong is refused here, before any arithmetic with it: a stride of zero would be a
division by zero further on.
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


def kernel_of(node: Node, weight: tuple[int, ...]) -> tuple[int, int]:
    """The size of a convolution's kernel: its weight's, which `kernel_shape` may only repeat."""
    if len(weight) != 4:
        raise ValueError(f"weight of shape {list(weight)}: only 2-D convolutions are supported")
    if min(weight) < 1:
        raise ValueError(f"weight of shape {list(weight)}: every size must be at least 1")
    kernel = (weight[2], weight[3])
    if node.attr("kernel_shape") is not None and pair(node, "kernel_shape") != kernel:
        declared = list(node.attr("kernel_shape"))
        raise ValueError(
            f"kernel_shape={declared} contradicts the weight {list(weight)},"
            f" whose kernel is {list(kernel)}"
        )
    return kernel


def groups_of(node: Node) -> int:
    """The number of groups."""
    groups = int(node.attr("group", 1))
    if groups < 1:
        raise ValueError(f"group={groups}: must be at least 1")
    return groups


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


def check_window(
    size: tuple[int, int], kernel: tuple[int, int], dilation: tuple[int, int], pad: Quad
) -> None:
    """Raises ValueError for a window that does not fit even once."""
    for i in range(2):
        if size[i] + pad[i] + pad[i + 2] < dilation[i] * (kernel[i] - 1) + 1:
            raise ValueError(
                f"a {kernel[0]}x{kernel[1]} window does not fit a {size[0]}x{size[1]} image "
                f"with padding {pad}: the image is too small"
            )
