"""Calls of operators whose result's sizes only the run knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .op_case import Case, by_torch, real, whole

V: Any = np.array


def _whole(*values: int) -> Any:
    return np.array(values, "int64")


def cases() -> Iterator[Case]:
    """Each operator with its codes, signs and layouts."""
    x = real(2, 3, 4)
    for codes, shape in (
        ((8, 3), (8, 3)), ((4, 0, 2), (4, 3, 2)), ((0, -1), (2, 12)), ((-1, 0), (8, 3)),
        ((-3, 4), (6, 4)), ((0, -3), (2, 12)), ((1, 2, -1, 2), (1, 2, 6, 2)),
    ):  # fmt: skip
        yield Case("dyn.reshape", (x, _whole(*codes)), lambda x, c, s=shape: x.reshape(s))
    for axis, shape in ((2, (2, 3, 1, 1, 4)), (-1, (2, 3, 4, 1, 1)), (0, (1, 1, 2, 3, 4))):
        yield Case("dyn.expand_dims", (x, V(axis, "int64")), lambda x, a, s=shape: x.reshape(s),
                   {"num_newaxis": 2})  # fmt: skip
    yield Case("dyn.squeeze", (real(1, 2, 1, 3, 1), _whole(0, -1)), lambda x, a: x[0, ..., 0])
    yield Case("dyn.broadcast_to", (real(3, 1), _whole(2, 3, 4)), lambda x, s: (
        np.broadcast_to(x, (2, 3, 4))))  # fmt: skip
    yield Case("dyn.tile", (x, _whole(2, 1, 3)), lambda x, r: np.tile(x, r))
    yield Case("dyn.tile", (x, _whole(3)), lambda x, r: np.tile(x, r))
    yield Case("dyn.tile", (real(3), _whole(2, 2)), lambda x, r: np.tile(x, r))
    yield Case("dyn.full", (real(), _whole(2, 5)), lambda v, s: np.full(s, v))
    yield Case("dyn.zeros", (_whole(2, 3),), lambda s: np.zeros(s, "float32"), {"dtype": "float32"})
    yield Case("dyn.ones", (_whole(4),), lambda s: np.ones(s, "int32"), {"dtype": "int32"})
    yield Case("dyn.one_hot", (whole(3, 2, low=-1, high=5), real(), real(), V(4, "int32")),
               lambda i, on, off, d: np.where(i[:, None] == np.arange(4)[:, None], on, off),
               {"axis": 1, "dtype": "float32"})  # fmt: skip
    y = real(5, 6, 3)
    for begin, end, strides in (
        ((1, -9), (4, 9), (2, 1)), ((-1, 5), (-9, 0), (-1, -2)), ((4, 0), (1, 6), (1, 4)),
    ):  # fmt: skip
        yield Case(
            "dyn.strided_slice",
            (y, *(_whole(*v) for v in (begin, end, strides))),
            lambda y, *b: y[tuple(slice(*map(int, v)) for v in zip(*b, strict=True))],
        )
    yield Case("dyn.strided_slice", (y, _whole(1, -2), _whole(2, -1), _whole(1)),
               lambda y, *b: y[1:3, 4:], {"slice_mode": "size"})  # fmt: skip
    for count, kept in ((2, 2), (0, 6), (99, 6)):
        yield Case("dyn.topk", (y, V(count, "int32")), lambda y, k, n=kept: (
            -np.sort(-y, 1)[:, :n]), {"axis": 1, "ret_type": "values"})  # fmt: skip
    yield Case(
        "dyn.nn.pad",
        (x, V([[1, 0], [0, 2], [-1, 3]], "int64"), real()),
        lambda x, w, v: np.pad(x[:, :, 1:], ((1, 0), (0, 2), (0, 3)), constant_values=v),
    )
    image = real(1, 2, 4, 5)
    resized = {"method": "linear", "coordinate_transformation_mode": "half_pixel"}
    yield Case("dyn.image.resize2d", (image, _whole(7, 3), np.zeros(4, "float32")),
               lambda x, s, r: F.interpolate(torch.from_numpy(x), (7, 3), mode="bilinear").numpy(),
               resized)  # fmt: skip
    yield Case("dyn.nn.upsampling", (image, V(2, "float32"), V(1.5, "float32")),
               by_torch(lambda x, h, w: (
                   F.interpolate(x, (8, 8), mode="bilinear", align_corners=True))),
               {"method": "bilinear", "align_corners": True})  # fmt: skip
    yield Case("dyn.nn.upsampling3d", (real(1, 2, 2, 3, 4), *(V(2, "float32") for _ in range(3))),
               by_torch(lambda x, *s: F.interpolate(x, (4, 6, 8))),
               {"coordinate_transformation_mode": "asymmetric"})  # fmt: skip
    places, values = V([[0, 1], [2, 3]], "int64"), real(2)

    def dense(places: Any, shape: Any, values: Any, fill: Any) -> Any:
        out = np.full(shape, fill)
        out[tuple(places.T)] = values
        return out

    yield Case("dyn.sparse_to_dense", (places, _whole(3, 4), values, real()), dense)
    listed = V([[3, 1], [0, 1], [0, 3]], "int64")
    filled = (V([[0, 1], [0, 3], [1, 0], [2, 0], [3, 1]]), V([6, 7, 9, 9, 5]))
    yield Case("sparse_fill_empty_rows", (listed, _whole(5, 6, 7), _whole(4, 6), _whole(9)),
               lambda *_: (*filled, V([False, True, True, False])))  # fmt: skip
    marks = whole(3, 4, low=0, high=2)
    yield Case("argwhere", (marks,), np.argwhere)
    yield Case("argwhere", (marks[0] > 0,), np.argwhere)

    empty = (V([[0, 0], [1, 0]]), V([9, 9]), V([True, True]))
    yield Case("sparse_fill_empty_rows", (listed[:0], _whole(), _whole(2, 6), _whole(9)),
               lambda *_: empty)  # fmt: skip


CASES = list(cases())
