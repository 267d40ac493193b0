"""ONNX' Resize, Upsample and Col2Im: each axis is resampled by itself, by a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..context import Context, Node, shape_of
from ..resampled import by_matrix, folded
from ..weights import Array
from ..windows import each, pair

_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_PLACES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
           "asymmetric")  # fmt: skip
_MODES = ("nearest", "linear", "cubic")


def _one_of(node: Node, name: str, values: Any, default: str) -> str:
    given = str(node.attr(name, default))
    if given not in values:
        raise ValueError(f"{name}={given!r}: only {', '.join(values)} are supported")
    return given


def _places(node: Node, transform: str, size: int, count: int, scale: float) -> Array:
    """Where each of `count` elements lies between the operand's `size`."""
    p = np.arange(count, dtype="float64")
    # The sizes' own ratio, which the file has as a float: p size / count is exact where it must be.
    plain = bool(np.float32(count / size) == np.float32(scale))

    def back(x: Array) -> Array:
        return x * size / count if plain else x / scale

    if transform == "asymmetric":
        return back(p)
    if transform == "align_corners":
        return p * (size - 1) / (count - 1) if count > 1 else p
    if transform == "pytorch_half_pixel" and count == 1:
        return p
    shift = 0.0
    if transform == "half_pixel_symmetric":
        shift = size / 2 * (1 - count / (scale * size))
    return shift + back(p + 0.5) - 0.5


def _weights(mode: str, fraction: Array, a: float, stretch: float) -> tuple[int, Array]:
    """(the first neighbour beside the floor, (elements, neighbours) of weights).

    stretch : by how much the kernel is wider: 1, or with antialias 1 / scale where that is more.
    """
    reach = math.ceil((1 if mode == "linear" else 2) * stretch)
    d = np.abs(fraction[:, None] - np.arange(1 - reach, reach + 1)) / stretch
    if mode == "linear":
        weights = np.maximum(1 - d, 0.0)
    else:
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((d - 5) * d + 8) * d * a - 4 * a
        weights = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    return 1 - reach, weights if stretch == 1 else weights / weights.sum(1, keepdims=True)


def matrix_of(node: Node, size: int, count: int, scale: float, *, old: bool = False) -> Array:
    """(count, size): what an axis of the result takes of the operand's.

    old : Upsample's places, and those of Resize in opset 10, which have no attribute for them.

    Raises ValueError for what is not supported, by name.
    """
    mode = _one_of(node, "mode", _MODES, "nearest")
    transform = "asymmetric" if old else _one_of(
        node, "coordinate_transformation_mode", _PLACES, "half_pixel"
    )  # fmt: skip
    places = _places(node, transform, size, count, scale)
    matrix = np.zeros((count, size))
    rows = np.arange(count)
    if mode == "nearest":
        kind = "floor" if old else _one_of(node, "nearest_mode", _ROUNDED, "round_prefer_floor")
        matrix[rows, np.clip(_ROUNDED[kind](places).astype(int), 0, size - 1)] = 1.0
        return matrix
    floor = np.floor(places)
    stretch = max(1 / scale, 1.0) if node.attr("antialias", 0) else 1.0
    slope = float(node.attr("cubic_coeff_a", -0.75))
    first, weights = _weights(mode, places - floor, slope, stretch)
    columns = floor.astype(int)[:, None] + first + np.arange(weights.shape[1])
    if node.attr("exclude_outside", 0):
        weights = np.where((columns >= 0) & (columns < size), weights, 0.0)
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    np.add.at(matrix, (rows[:, None], np.clip(columns, 0, size - 1)), weights)
    return matrix


def _given(ctx: Context, node: Node) -> tuple[list[int], list[int], list[float]]:
    """(axes, their new sizes, their scales)."""
    shape = shape_of(ctx.tensor(node.operand(0)))
    named = node.proto.op_type == "Upsample" or ctx.options.opset < 11
    scales = node.setting("scales", 1 if named else 2)
    sizes = None if named else node.setting("sizes", 3)
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
    for axis, count, scale in zip(*_given(ctx, node), strict=True):
        size = shape_of(x)[axis]
        if count < 1:
            raise ValueError(f"axis {axis} of {size} elements would be empty, scale {scale}")
        if count == size and scale == 1.0:
            continue
        x = by_matrix(ctx, x, axis, matrix_of(node, size, count, scale, old=old))
    return x


def col2im(ctx: Context, node: Node) -> Any:
    """Col2Im of images: windows (N, C R S, windows) summed where they lay."""
    size, kernel = ([int(v) for v in node.static(i, "a size").ravel()] for i in (1, 2))
    if len(size) != 2 or len(kernel) != 2:
        raise ValueError(f"sizes {size} and {kernel}: only images are supported")
    given = {name: pair(node, name) for name in ("dilations", "strides")}
    pads = each(node, "pads", 4, 0, 0)
    x = ctx.tensor(node.operand(0))
    return folded(ctx, x, size, kernel, given["dilations"], pads, given["strides"])


RESIZING = {"Col2Im": col2im, "Resize": resize, "Upsample": resize}
"""ONNX op -> builder."""
