"""Interpolation along an axis, with plain arguments: what each element of the result takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .weights import Array

ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
PLACES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
          "asymmetric")  # fmt: skip
MODES = ("nearest", "linear", "cubic")


@dataclass(frozen=True)
class Interpolation:
    """How an axis is interpolated.

    mode : of `MODES`; places : where the result's elements lie between the operand's, of `PLACES`;
    rounded : of `ROUNDED`, for "nearest"; antialias : whether the kernel is wider where the result
    is smaller; slope : of the cubic's kernel; inside : whether what is outside counts for nothing,
    rather than as what is nearest to it.
    """

    mode: str = "nearest"
    places: str = "half_pixel"
    rounded: str = "round_prefer_floor"
    antialias: bool = False
    slope: float = -0.75
    inside: bool = False

    def matrix(self, size: int, count: int, scale: float) -> Array:
        """(count, size): what an axis of the result takes of the operand's."""
        places = _places(self.places, size, count, scale)
        matrix, rows = np.zeros((count, size)), np.arange(count)
        if self.mode == "nearest":
            nearest = ROUNDED[self.rounded](places).astype(int)
            matrix[rows, np.clip(nearest, 0, size - 1)] = 1.0
            return matrix
        floor = np.floor(places)
        stretch = max(1 / scale, 1.0) if self.antialias else 1.0
        first, weights = _weights(self.mode, places - floor, self.slope, stretch)
        columns = floor.astype(int)[:, None] + first + np.arange(weights.shape[1])
        if self.inside:
            weights = np.where((columns >= 0) & (columns < size), weights, 0.0)
            total = weights.sum(1, keepdims=True)
            weights = weights / np.where(total == 0, 1.0, total)
        np.add.at(matrix, (rows[:, None], np.clip(columns, 0, size - 1)), weights)
        return matrix


def _places(transform: str, size: int, count: int, scale: float) -> Array:
    """Where each of `count` elements lies between the operand's `size`."""
    p = np.arange(count, dtype="float64")
    # The sizes' own ratio, which a file has as a float: p size / count is exact where it must be.
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
