"""What the poolings' generated functions compute: packed functions in NumPy, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tvm

from byoc_cudnn.pool import PoolCall
from byoc_cudnn.pool.codegen import POOLS
from tests.support.recorder import Recorder


def recorder() -> Recorder:
    """In the place of `POOLS`."""
    return Recorder(POOLS, packed)


def packed(call: PoolCall) -> Callable[..., None]:
    def run(*tensors: Any) -> None:
        count = len(call.operands)
        assert len(tensors) == count + len(call.results), call
        given = {n: t.numpy() for n, t in zip(call.operands, tensors, strict=False)}
        out = tensors[count]
        if call.direction == "forward":
            x = given["x"]
            if call.slice:
                first, wide = call.slice
                assert x.shape[-1] == wide
                x = x[..., first : first + out.shape[-1]]
            made = _forward(call, x, out.shape)
        else:
            taps = (
                given["index"] if call.index else _forward(call, given["x"], given["dy"].shape)[1]
            )
            made = [_backward(call, given["dy"], taps, out.shape)]
        for tensor, value in zip(tensors[count:], made, strict=False):
            tvm.runtime.tensor(np.ascontiguousarray(value.astype(tensor.dtype))).copyto(tensor)

    return run


def _taps(call: PoolCall, image: Any, windows: Any) -> Iterator[tuple[int, Any, Any, Any]]:
    """Of each tap its number, the pixels of all windows, and which are there."""
    (r, s), (down, across), (top, left) = call.kernel, call.strides, call.padding[:2]
    for tap in range(r * s):
        rows = np.arange(windows[1]) * down - top + tap // s
        columns = np.arange(windows[2]) * across - left + tap % s
        there = np.outer((rows >= 0) & (rows < image[1]), (columns >= 0) & (columns < image[2]))[
            None, ..., None
        ]
        yield tap, np.clip(rows, 0, image[1] - 1), np.clip(columns, 0, image[2] - 1), there


def _forward(call: PoolCall, x: np.ndarray, shape: Any) -> list[np.ndarray]:
    best, index = np.full(shape, -np.inf), np.zeros(shape, np.uint8)
    for tap, rows, columns, there in _taps(call, x.shape, shape):
        value = np.where(there, x[:, rows[:, None], columns].astype(float), -np.inf)
        index[value > best] = tap
        best = np.maximum(best, value)
    return [best, index]


def _backward(call: PoolCall, dy: np.ndarray, index: np.ndarray, shape: Any) -> np.ndarray:
    out = np.zeros(shape)
    for tap, rows, columns, there in _taps(call, shape, dy.shape):
        part = np.where(there & (index == tap), dy, 0)
        np.add.at(out, (slice(None), rows[:, None], columns), part)
    return out
