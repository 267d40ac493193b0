"""Calls of operators of object detection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm.topi.testing

from .op_case import RNG, Case, real

T: Any = tvm.topi.testing
ROIS = np.array([[0, 0, 0, 6, 5], [1, 1, 2, 7, 7], [0, 3, 1, 4, 6]], "float32")


def _reorganized(x: np.ndarray) -> np.ndarray:
    """Stride 2, element by element as darknet's loop."""
    n, c, h, w = x.shape
    flat, out, few = x.reshape(-1), [], c // 4
    for b, k, j, i in np.ndindex(n, c, h, w):
        part = k // few
        row, column = 2 * j + part // 2, 2 * i + part % 2
        out.append(flat[column + 2 * w * (row + 2 * h * (k % few + few * b))])
    return np.array(out, x.dtype).reshape(n, 4 * c, h // 2, w // 2)


def _correlated(a: Any, b: Any) -> Any:
    """Patches of 3 x 3 of one, by those of the other two steps beside, all ways."""
    a, b = (np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2))) for x in (a, b))
    out = np.zeros((2, 9, 3, 4))
    for i, j, q in np.ndindex(3, 4, 9):
        y, x = i + 2, j + 2
        dy, dx = (q // 3 - 1) * 2, (q % 3 - 1) * 2
        one, other = a[..., y : y + 3, x : x + 3], b[..., y + dy : y + dy + 3, x + dx : x + dx + 3]
        out[:, q, i, j] = (one * other).sum((1, 2, 3)) / 27
    return out


def cases() -> Iterator[Case]:
    """Deformable convolutions, pooled regions, YOLO."""
    data, weight = real(2, 4, 6, 5), real(6, 4, 3, 3)
    attrs: dict[str, Any] = {"strides": [2, 1], "padding": [1], "deformable_groups": 2}
    offset = RNG.uniform(-1.5, 1.5, (2, 36, 3, 5)).astype("float32")
    yield Case("nn.deformable_conv2d", (data, offset, weight), lambda d, o, w: (
        T.deformable_conv2d_nchw_python(d, o, w, (2, 1), (1, 1), (1, 1), 2, 1)), attrs)  # fmt: skip
    last = tuple(x.transpose(0, 2, 3, 1).copy() for x in (data, offset))
    yield Case("nn.deformable_conv2d", (*last, weight.transpose(2, 3, 1, 0).copy()),
               lambda d, o, w: T.deformable_conv2d_nchw_python(
                   d.transpose(0, 3, 1, 2), o.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1),
                   (2, 1), (1, 1), (1, 1), 2, 1).transpose(0, 2, 3, 1),
               attrs | {"data_layout": "NHWC", "kernel_layout": "HWIO"})  # fmt: skip
    x = real(2, 3, 8, 8)
    for mode in ("avg", "max"):
        yield Case("vision.roi_align", (x, ROIS), lambda x, r, m=mode: (
            T.roi_align_nchw_python(x, r, (2, 3), 0.5, 2, m.encode())),
            {"pooled_size": [2, 3], "spatial_scale": 0.5, "sample_ratio": 2,
             "mode": mode})  # fmt: skip
    away = ROIS.copy()
    away[0, 0], away[1, 0] = -3, 9
    yield Case("vision.roi_pool", (x, away), lambda x, r: (
        T.roi_pool_nchw_python(x, ROIS, 2, 1.0)),
        {"pooled_size": [2, 2], "spatial_scale": 1.0})  # fmt: skip
    yield Case("nn.correlation", (real(2, 3, 5, 6), real(2, 3, 5, 6)), _correlated,
               {"kernel_size": 3, "max_displacement": 2, "stride2": 2,
                "padding": [2, 2]})  # fmt: skip
    yield Case("vision.yolo_reorg", (real(2, 8, 4, 6),), _reorganized, {"stride": 2})
