"""Calls of operators that read and write by index, count, sort, sum and rearrange."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .op_case import Case, real, whole

V: Any = np.array


def _reads() -> Iterator[Case]:
    x = real(3, 4)
    # Below zero from the end; outside: the nearest.
    which = V([[0, -1, 2, 9], [-9, 1, 0, 2]], "int32")
    yield Case("gather", (x, which), lambda x, i: (
        np.take_along_axis(x, np.clip(np.where(i < 0, i + 3, i), 0, 2), 0)),
        {"axis": 0})  # fmt: skip
    yield Case("gather", (x, whole(3, 6, low=0, high=4, dtype="int64")),
               lambda x, i: np.take_along_axis(x, i, 1), {"axis": -1})  # fmt: skip
    pairs = V([[0, 2, -1], [3, 9, 1]], "int32")
    yield Case("gather_nd", (x, pairs), lambda x, i: x[[0, 2, 2], [3, 3, 1]])
    yield Case("gather_nd", (real(2, 3, 4), V([[1, 0]], "int64")),
               lambda x, i: x[[0, 1], [1, 0]], {"batch_dims": 1})  # fmt: skip
    a, b = whole(2, 1, low=0, high=3), whole(1, 5, low=-4, high=4, dtype="int64")
    yield Case("adv_index", ((real(3, 4, 2), a, b),), lambda t: t[0][t[1], t[2]])
    yield Case("unravel_index", (whole(5, low=0, high=24), V([2, 3, 4], "int32")),
               lambda i, s: np.stack(np.unravel_index(i, s)))  # fmt: skip


def _writes() -> Iterator[Case]:
    x, outside = real(3, 4), V([[0, -1, 9, 2], [1, -7, 0, 0]], "int32")

    def put(x: Any, i: Any, u: Any, mode: str = "add") -> Any:
        out = x.copy()
        for r, c in np.ndindex(i.shape):
            row = i[r, c] + (3 if i[r, c] < 0 else 0)
            if 0 <= row < 3:
                old, new = out[row, c], u[r, c]
                out[row, c] = {"add": old + new, "max": max(old, new), "mul": old * new}[mode]
        return out

    for mode in ("add", "max", "mul"):
        yield Case("scatter_elements", (x, outside, real(2, 4)),
                   lambda x, i, u, mode=mode: put(x, i, u, mode), {"reduction": mode})  # fmt: skip

    def update(x: Any, i: Any, u: Any) -> Any:
        out = x.copy()
        np.put_along_axis(out, i, u, 1)
        return out

    places = V([[3, 0], [1, 2], [2, 0]], "int64")
    yield Case("scatter_elements", (x, places, real(3, 2)), update, {"axis": 1})

    def put_nd(x: Any, i: Any, u: Any) -> Any:
        out = x.copy()
        for k in range(i.shape[1]):
            if (-3 <= i[0, k] < 3) and (-4 <= i[1, k] < 4):
                out[i[0, k], i[1, k]] += u[k]
        return out

    yield Case("scatter_nd", (x, V([[0, 2, 0, -1], [1, 7, 1, 0]], "int32"), real(4)), put_nd,
               {"mode": "add"})  # fmt: skip
    rows = V([[2, 0]], "int64")
    yield Case("scatter_nd", (x, rows, real(2, 4)), lambda x, i, u: V([u[1], x[1], u[0]]))


def _sequences() -> Iterator[Case]:
    x, lengths = real(4, 3, 2), V([0, 2, 7], "int32")
    yield Case("sequence_mask", (x, lengths), lambda x, n: (
        np.where((np.arange(4)[:, None] < n)[..., None], x, np.float32(0.5))),
        {"mask_value": 0.5})  # fmt: skip
    yield Case("sequence_mask", (whole(3, 4), lengths), lambda x, n: (
        np.where(np.arange(4) < n[:, None], x, 0)), {"axis": 1})  # fmt: skip
    yield Case("reverse_sequence", (real(2, 4, 3), V([3, 9], "int32")), lambda x, n: (
        np.stack([np.concatenate([x[0, 2::-1], x[0, 3:]]), x[1, ::-1]])))  # fmt: skip
    for upper, function in ((True, np.triu), (False, np.tril)):
        yield Case("trilu", (real(2, 3, 4), V(1, "int32")), lambda x, k, f=function: (
            np.stack([f(m, k) for m in x])), {"upper": upper})  # fmt: skip

    def diagonal(x: Any, d: Any) -> Any:
        out = x.copy()
        for i in range(3):
            out[:, i, i + 1] = d[:, i]
        return out

    yield Case("matrix_set_diag", (real(2, 3, 4), real(2, 3)), diagonal, {"k1": 1, "k2": 1})

    def band(x: Any, d: Any) -> Any:
        """Diagonals 1 and 0: the upper stands at the right, as the lower."""
        out = x.copy()
        for i in range(3):
            out[i, i] = d[1, i]
        for i in range(2):
            out[i, i + 1] = d[0, i + 1]
        return out

    yield Case("matrix_set_diag", (real(3, 3), real(2, 3)), band,
               {"k1": 0, "k2": 1, "sub_diag_right_align": True})  # fmt: skip


def _counts() -> Iterator[Case]:
    for start, stop, step, dtype in ((1, 20, 3, "int32"), (2.0, -1.25, -0.75, "float32")):
        ends = tuple(V(v, dtype) for v in (start, stop, step))
        yield Case("arange", ends, lambda *ends: np.arange(*ends),
                   {"start": start, "stop": stop, "step": step, "dtype": dtype})  # fmt: skip
    lines = (real(2), real(3), real(4))
    for indexing in ("ij", "xy"):
        yield Case("meshgrid", (lines,), lambda t, how=indexing: np.meshgrid(*t, indexing=how),
                   {"indexing": indexing})  # fmt: skip
    x = real(3, 4)
    for name in ("cumsum", "cumprod"):
        yield Case(name, (x,), lambda x, n=name: getattr(np, n)(x, 1), {"axis": -1})
    yield Case("cumsum", (whole(3, 4),), lambda x: np.cumsum(x, dtype="int64"), {"dtype": "int64"})
    yield Case("cumsum", (x,), lambda x: np.cumsum(x, 0) - x, {"axis": 0, "exclusive": True})
    yield Case("sliding_window", (real(2, 5, 6),), lambda x: (
        np.lib.stride_tricks.sliding_window_view(x, (2, 3), (1, 2))[:, ::2, ::1]),
        {"axis": 1, "window_shape": [2, 3], "strides": [2, 1]})  # fmt: skip
    yield Case("sort", (x,), lambda x: np.sort(x, 0), {"axis": 0})
    yield Case("sort", (x,), lambda x: -np.sort(-x, 1), {"is_ascend": False})
    yield Case("argsort", (x,), lambda x: np.argsort(x, -1), {"dtype": "int32"})
    yield Case("topk", (x,), lambda x: (-np.sort(-x, 1)[:, :2], np.argsort(-x, 1)[:, :2]),
               {"k": 2, "dtype": "int64"})  # fmt: skip
    yield Case("topk", (x,), lambda x: np.sort(x, 0)[:1],
               {"k": 1, "axis": 0, "ret_type": "values", "is_ascend": True})  # fmt: skip
    line = np.sort(real(6))
    for right in (False, True):
        yield Case("searchsorted", (line, np.append(line[2:4], real(3))), lambda a, v, r=right: (
            np.searchsorted(a, v, "right" if r else "left")), {"right": right})  # fmt: skip
    yield Case("shape_of", (x,), lambda x: V(x.shape), {"dtype": "int64"})
    yield Case("ndarray_size", (x,), lambda x: V(x.size), {"dtype": "int32"})
    yield Case("reinterpret", (x,), lambda x: x.view("int32"), {"dtype": "int32"})
    yield Case("fixed_point_multiply", (whole(9, low=-2000, high=2000),), lambda x: (
        np.floor(x.astype("float64") * 1073741824 * 2.0**-33 + 0.5)),
        {"multiplier": 1073741824, "shift": -2})  # fmt: skip


def _spaces() -> Iterator[Case]:
    x = real(2, 4, 4, 6)

    def deep(x: Any) -> Any:
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(
            n, 4 * c, h // 2, w // 2)  # fmt: skip

    def wide(x: Any, mode: str = "DCR") -> Any:
        n, c, h, w = x.shape
        parts = (n, 2, 2, c // 4, h, w) if mode == "DCR" else (n, c // 4, 2, 2, h, w)
        order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
        return x.reshape(parts).transpose(order).reshape(n, c // 4, 2 * h, 2 * w)

    yield Case("nn.space_to_depth", (x,), deep, {"block_size": 2})
    for mode in ("DCR", "CDR"):
        yield Case("nn.depth_to_space", (x,), lambda x, m=mode: wide(x, m),
                   {"block_size": 2, "mode": mode})  # fmt: skip
    yield Case("nn.depth_to_space", (x.transpose(0, 2, 3, 1).copy(),), lambda x: (
        wide(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)),
        {"block_size": 2, "layout": "NHWC"})  # fmt: skip

    def batched(x: Any) -> Any:
        x = np.pad(x, [(0, 0), (1, 0), (0, 2), (0, 0)], constant_values=0.5)
        n, h, w, c = x.shape
        parts = x.reshape(n, h // 2, 2, w // 3, 3, c).transpose(2, 4, 0, 1, 3, 5)
        return parts.reshape(6 * n, h // 2, w // 3, c)

    yield Case("nn.space_to_batch_nd", (real(2, 3, 4, 2),), batched,
               {"block_shape": [2, 3], "paddings": [[1, 0], [0, 2]], "pad_value": 0.5})  # fmt: skip

    def back(x: Any) -> Any:
        parts = x.reshape(2, 3, 2, 2, 2, 2).transpose(2, 3, 0, 4, 1, 5)
        return parts.reshape(2, 4, 6, 2)[:, 1:, :4]

    yield Case("nn.batch_to_space_nd", (real(12, 2, 2, 2),), back,
               {"block_shape": [2, 3], "crops": [[1, 0], [0, 2]]})  # fmt: skip
    for mode in ("SYMMETRIC", "REFLECT"):
        yield Case("nn.mirror_pad", (real(3, 4),), lambda x, m=mode: (
            np.pad(x, [(1, 2), (0, 3)], m.lower())),
            {"mode": mode, "pad_width": [[1, 2], [0, 3]]})  # fmt: skip
    yield Case("nn.pad", (real(3, 4), V(0.5, "float32")), lambda x, v: (
        np.pad(x[1:, :-2], [(0, 2), (1, 0)], constant_values=0.5)),
        {"pad_width": [[-1, 2], [1, -2]]})  # fmt: skip


def _sparse() -> Iterator[Case]:
    listed, values, one = V([[0, 1], [2, 3], [5, 0]], "int64"), real(3), real()

    def dense(i: Any, v: Any, d: Any) -> Any:
        out = np.full((3, 4), d)
        out[tuple(i[:2].T)] = v[:2]
        return out

    yield Case("sparse_to_dense", (listed, values, one), dense, {"output_shape": [3, 4]})
    yield Case("sparse_to_dense", (V(2, "int32"), one, real()), lambda i, v, d: (
        np.where(np.arange(4) == i, v, d)), {"output_shape": [4]})  # fmt: skip
    signal, window = real(2, 20), real(6)

    def waves(x: Any, w: Any) -> Any:
        w = np.pad(w.astype("float64"), 1)
        frames = np.stack([np.fft.rfft(x[:, 3 * m : 3 * m + 8] * w) for m in range(5)], 2)
        return np.stack([frames.real, frames.imag], 3) / np.sqrt(8)

    yield Case("stft", (signal, window), waves,
               {"n_fft": 8, "hop_length": 3, "win_length": 6, "normalized": True})  # fmt: skip
    yield Case("contrib_reverse_reshape", (real(2, 3, 4),), lambda x: x.reshape(6, 4),
               {"newshape": [-1, 0]})  # fmt: skip
    yield Case("annotation.checkpoint", (real(2, 3),), lambda x: x)
    places = V([[0, 1, 2], [1, 0, 3], [1, 2, 0]], "int64")
    shapes = V([2, 3, 4], "int64"), V([4, -1], "int64")
    yield Case("sparse_reshape", (places, *shapes), lambda i, a, b: (
        np.stack(np.unravel_index(np.ravel_multi_index(tuple(i.T), a), (4, 6)), 1),
        V([4, 6])))  # fmt: skip


def cases() -> Iterator[Case]:
    """All of them."""
    for family in (_reads, _writes, _sequences, _counts, _spaces, _sparse):
        yield from family()
