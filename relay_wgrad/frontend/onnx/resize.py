"""ONNX' Resize, Upsample and Col2Im: each axis is resampled by itself, by a matrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..context import Context, shape_of
from ..interpolation import MODES, PLACES, ROUNDED, Interpolation
from ..resampling import by_matrix, folded
from .node import Node
from .windows import per_axis


def _one_of(node: Node, name: str, values: Any, default: str) -> str:
    given = str(node.attr(name, default))
    if given not in values:
        raise ValueError(f"{name}={given!r}: only {', '.join(values)} are supported")
    return given


def _interpolation(node: Node, old: bool) -> Interpolation:
    """A node's attributes; `old`: those of Upsample, and of Resize in opset 10, which have places
    of their own and say nothing of them.

    Raises ValueError for what is not supported, by name.
    """
    mode = _one_of(node, "mode", MODES, "nearest")
    places, rounded = "asymmetric", "floor"
    if not old:
        places = _one_of(node, "coordinate_transformation_mode", PLACES, "half_pixel")
    if mode == "nearest" and not old:
        rounded = _one_of(node, "nearest_mode", ROUNDED, "round_prefer_floor")
    flags = [bool(node.attr(name, 0)) for name in ("antialias", "exclude_outside")]
    return Interpolation(
        mode, places, rounded, flags[0], float(node.attr("cubic_coeff_a", -0.75)), flags[1]
    )


def _sizes_and_scales(ctx: Context, node: Node) -> tuple[list[int], list[int], list[float]]:
    """(axes, their new sizes, their scales)."""
    shape = shape_of(ctx.tensor(node.operand(0)))
    named = node.proto.op_type == "Upsample" or ctx.options.opset < 11
    scales = node.numbers("scales", 1 if named else 2)
    sizes = None if named else node.numbers("sizes", 3)
    axes = [int(a) % len(shape) for a in node.attr("axes", range(len(shape)))]
    if not scales and not sizes:
        raise ValueError("scales or sizes are missing")
    given = sizes or scales
    if len(given) != len(axes) or min(given) <= 0:
        raise ValueError(f"{given} of {list(shape)}: expected a positive number for each of {axes}")
    old = [shape[a] for a in axes]
    if not sizes:
        # In float32, as ONNX' shape inference has it.
        counts = [
            math.floor(np.float32(s) * np.float32(f)) for s, f in zip(old, scales, strict=True)
        ]
        return axes, counts, [float(f) for f in scales]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise ValueError(f"keep_aspect_ratio_policy={policy!r}: only 'stretch' is supported")
    counts = [int(s) for s in sizes]
    before = ctx.original.get(node.operand(0).name)
    if before is not None and not node.operand(3).measured:
        counts = [_followed(c, before[a], shape[a]) for c, a in zip(counts, axes, strict=True)]
    return axes, counts, [c / s for c, s in zip(counts, old, strict=True)]


def _followed(count: int, before: int, now: int) -> int:
    """A size that was right for `before` elements, in the same ratio to those of now."""
    if before == now:
        return count
    if count * now % before:
        raise ValueError(
            f"a size of {count} for {before} elements has no counterpart for {now}: it fixes the"
            " image size"
        )
    return count * now // before


def resize(ctx: Context, node: Node) -> Any:
    """Resize and Upsample by constant scales or sizes; baked sizes follow a new image size."""
    x = ctx.tensor(node.operand(0))
    old = node.proto.op_type == "Upsample" or ctx.options.opset < 11
    for axis, count, scale in zip(*_sizes_and_scales(ctx, node), strict=True):
        size = shape_of(x)[axis]
        if count < 1:
            raise ValueError(f"axis {axis} of {size} elements would be empty, scale {scale}")
        if count == size and scale == 1.0:
            continue
        x = by_matrix(ctx, x, axis, _interpolation(node, old).matrix(size, count, scale))
    return x


def col2im(ctx: Context, node: Node) -> Any:
    """Col2Im of images: windows (N, C R S, windows) summed where they lay."""
    size, kernel = ([int(v) for v in node.static(i, "a size").ravel()] for i in (1, 2))
    if len(size) != 2 or len(kernel) != 2:
        raise ValueError(f"sizes {size} and {kernel}: only images are supported")
    given = {name: per_axis(node, name, 2) for name in ("dilations", "strides")}
    pads = per_axis(node, "pads", 4, 0, 0)
    x = ctx.tensor(node.operand(0))
    return folded(ctx, x, size, kernel, given["dilations"], pads, given["strides"])


RESIZING = {"Col2Im": col2im, "Resize": resize, "Upsample": resize}
"""ONNX op -> builder."""
