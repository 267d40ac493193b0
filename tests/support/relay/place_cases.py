"""Calls of operators of places: slices that are written, values once each, gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .op_case import Case, real, whole


def _int(*values: int) -> Any:
    return np.array(values, "int32")


def _unique(in_order: bool, counted: bool) -> Any:
    def rows(x: Any) -> Any:
        values, first, which, often = np.unique(x, True, True, True)
        if not in_order:
            order = np.argsort(first)
            values, first, often = values[order], first[order], often[order]
            which = np.argsort(order)[which]
        rest = len(x) - len(values)
        padded = [np.pad(each, (0, rest)) for each in (values, first, often)]
        out = (padded[0], padded[1], which, np.array([len(values)]))
        return (*out, padded[2]) if counted else out

    return rows


def cases() -> Iterator[Case]:
    """Slices with each sign, values in both orders, and gaps between elements."""
    x = real(4, 5)
    for begin, end, strides in (
        ((1, 0), (4, 9), (2, 2)), ((-1, 4), (-9, 0), (-2, -1)), ((1, -3), (3, -1), (1,)),
    ):  # fmt: skip
        steps = (*strides, 1)[:2]
        where = tuple(slice(*b) for b in zip(begin, end, steps, strict=True))

        def written(x: Any, v: Any, *_: Any, where: Any = where) -> Any:
            out = x.copy()
            out[where] = v
            return out

        yield Case("strided_set", (x, real(*x[where].shape), _int(*begin), _int(*end),
                                   _int(*strides)), written)  # fmt: skip
    for in_order, counted in ((True, False), (False, True), (True, True)):
        yield Case("unique", (whole(12, low=0, high=5, dtype="int64"),),
                   _unique(in_order, counted),
                   {"sorted": in_order, "return_counts": counted})  # fmt: skip
    yield Case("unique", (_int(3),), _unique(True, False))

    a, b, c = real(2, 3, 4), real(4, 3), real(3)
    for equation, operands in (("abc,cb->ba", (a, b)), ("abc,cb", (a, b)),
                               ("...c,cd->...d", (a, b)),
                               ("aab->b", (real(3, 3, 2),)),
                               ("a,a,a->", (c, real(3), real(3)))):  # fmt: skip
        yield Case("einsum", (operands,), lambda t, e=equation: np.einsum(e, *t),
                   {"equation": equation})  # fmt: skip

    def dilated(x: Any) -> Any:
        out = np.full((7, 3, 13), np.float32(0.5))
        out[::2, :, ::3] = x
        return out

    yield Case("nn.dilate", (real(4, 3, 5),), dilated,
               {"strides": [2, 1, 3], "dilation_value": 0.5})  # fmt: skip
