"""Calls of the operators on images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .op_case import RNG, Case, by_torch, real, whole

_TORCH = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _interpolated(size: Any, mode: str, corners: bool | None, last: bool) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        x = x.movedim(-1, 1) if last else x
        y = F.interpolate(x, size=tuple(size), mode=mode, align_corners=corners)
        return y.movedim(1, -1) if last else y

    return by_torch(run)


def _resizes() -> Iterator[Case]:
    data = {1: (2, 3, 5), 2: (1, 2, 4, 5), 3: (1, 2, 3, 4, 2)}
    for axes, first, last in ((1, "NCW", "NWC"), (2, "NCHW", "NHWC"), (3, "NCDHW", "NDHWC")):
        size, name = [7, 3, 6][:axes], f"image.resize{axes}d"
        common = {"size": size, "roi": [0.0] * (2 * axes), "rounding_method": ""}
        for corners in (False, True):
            mode = "align_corners" if corners else "half_pixel"
            yield Case(name, (real(*data[axes]),),
                       _interpolated(size, _TORCH[axes], corners, False),
                       common | {"coordinate_transformation_mode": mode})  # fmt: skip
        yield Case(name, (real(*data[axes]),), _interpolated(size, _TORCH[axes], False, True),
                   common | {"layout": last})  # fmt: skip
        yield Case(name, (real(*data[axes]),), _interpolated(size, "nearest", None, False),
                   common | {"layout": first, "method": "nearest_neighbor",
                             "coordinate_transformation_mode": "asymmetric"})  # fmt: skip
    for corners in (False, True):
        yield Case("image.resize2d", (real(1, 2, 4, 5),),
                   _interpolated([7, 3], "bicubic", corners, False),
                   {"size": [7, 3], "roi": [0.0] * 4, "method": "cubic", "cubic_alpha": -0.75,
                    "coordinate_transformation_mode":
                        "align_corners" if corners else "half_pixel"})  # fmt: skip


def _cropped(
    data: np.ndarray, boxes: np.ndarray, which: np.ndarray, size: Any, outside: float
) -> np.ndarray:
    """TensorFlow's words: corners are at the ends, what lies outside is one number."""
    (h, w), n = data.shape[2:], len(boxes)
    out = np.full((n, data.shape[1], *size), outside, "float64")
    for i, (y1, x1, y2, x2) in enumerate(boxes.astype("float64")):
        image = data[np.clip(which[i], 0, len(data) - 1)].astype("float64")
        for r in range(size[0]):
            for c in range(size[1]):
                y = y1 * (h - 1) + r * (y2 - y1) * (h - 1) / (size[0] - 1)
                x = x1 * (w - 1) + c * (x2 - x1) * (w - 1) / (size[1] - 1)
                if not (0 <= y <= h - 1 and 0 <= x <= w - 1):
                    continue
                a, b = int(y), int(x)
                a2, b2, fy, fx = min(a + 1, h - 1), min(b + 1, w - 1), y - a, x - b
                top = image[:, a, b] * (1 - fx) + image[:, a, b2] * fx
                low = image[:, a2, b] * (1 - fx) + image[:, a2, b2] * fx
                out[i, :, r, c] = top * (1 - fy) + low * fy
    return out


def _dilated(data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Strides (2, 1), padding 1, dilations (1, 2)."""
    wide = np.pad(data, [(0, 0), (0, 0), (1, 1), (1, 1)])
    _, r, s = weight.shape
    p = (wide.shape[2] - r) // 2 + 1
    q = wide.shape[3] - 2 * (s - 1)
    out = np.full((*data.shape[:2], p, q), -np.inf, data.dtype)
    for i in range(r):
        for j in range(s):
            window = wide[:, :, i : i + 2 * p : 2, 2 * j : 2 * j + q][:, :, :p]
            out = np.maximum(out, window + weight[:, i, j, None, None])
    return out


def cases() -> Iterator[Case]:
    """Resizes, crops, dilations, grids."""
    yield from _resizes()
    x = real(2, 3, 5, 6)
    boxes = RNG.uniform(-0.1, 1.1, (4, 4)).astype("float32")
    # An image that is not there is the nearest that is.
    which, size = np.array([1, 0, 5, -2], "int32"), [3, 4]
    attrs: dict[str, Any] = {"crop_size": size, "extrapolation_value": 0.5, "layout": "NCHW"}
    yield Case("image.crop_and_resize", (x, boxes, which),
               lambda d, b, w: _cropped(d, b, w, size, 0.5), attrs)  # fmt: skip
    last = x.transpose(0, 2, 3, 1).copy()
    yield Case("image.crop_and_resize", (last, boxes, whole(4, low=0, high=2)), lambda d, b, w: (
        _cropped(d.transpose(0, 3, 1, 2), b, w, size, 0.5).transpose(0, 2, 3, 1)),
        attrs | {"layout": "NHWC"})  # fmt: skip
    attrs = {"strides": [2, 1], "padding": [1, 1], "dilations": [1, 2]}
    yield Case("image.dilation2d", (x, real(3, 2, 2)), _dilated, attrs)
    yield Case("image.dilation2d", (real(2, 5, 6, 3), real(2, 2, 3)), lambda d, w: (
        _dilated(d.transpose(0, 3, 1, 2), w.transpose(2, 0, 1)).transpose(0, 2, 3, 1)),
        attrs | {"data_layout": "NHWC", "kernel_layout": "HWI"})  # fmt: skip
    yield Case("image.affine_grid", (real(2, 2, 3),), by_torch(lambda theta: (
        F.affine_grid(theta, [2, 1, 4, 5], align_corners=True).movedim(-1, 1))),
        {"target_shape": [4, 5]})  # fmt: skip
    for method, padding, corners in (("bilinear", "zeros", True), ("nearest", "border", False),
                                     ("bicubic", "reflection", True),
                                     ("bilinear", "reflection", True),
                                     ("bilinear", "reflection", False),
                                     ("nearest", "reflection", False)):  # fmt: skip
        reach = 5 if padding == "reflection" else 1.3
        points = RNG.uniform(-reach, reach, (2, 2, 4, 3)).astype("float32")
        yield Case("image.grid_sample", (x, points), by_torch(lambda x, g, a=(
            method, padding, corners): F.grid_sample(x, g.movedim(1, -1), *a)),
            {"method": method, "padding_mode": padding, "align_corners": corners})  # fmt: skip
    points = RNG.uniform(-1.3, 1.3, (2, 3, 2, 3, 2)).astype("float32")
    yield Case("image.grid_sample", (real(2, 2, 3, 4, 5), points), by_torch(lambda x, g: (
        F.grid_sample(x, g.movedim(1, -1), align_corners=False))),
        {"layout": "NCDHW", "align_corners": False})  # fmt: skip
