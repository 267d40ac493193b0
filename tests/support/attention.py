"""Attention's calls: NumPy's numbers for them, and the kernels on a device that is the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from byoc_cudnn.attention import ATTENTION, AttentionCall, Place
from byoc_cudnn.attention.call import OUTER, PLACED, WRITTEN
from byoc_cudnn.softmax.call import MASKS
from relay_wgrad.dtypes import numpy_dtype
from tests.support.softmax import AddedTensor, places_of, put_added
from tests.support.warps_emulated import built

LIMITS = {"float16": 1.2e-3, "bfloat16": 9e-3}
"""How far results may be from float64's, relative to their norm: weights are rounded, and what is
made of them."""


def lines(call: AttentionCall, name: str) -> int:
    """Rows of a tensor's matrices."""
    return call.columns if name in ("k", "v", "dk", "dv") else call.rows


def view(call: AttentionCall, name: str, array: np.ndarray) -> np.ndarray:
    """A tensor's matrices, (sizes…, rows, width), where they lie in an array."""
    at = call.places[PLACED[call.direction].index(name)]
    shape = (*sizes_of(call, array, name), lines(call, name), int(call.width))
    steps = [n * array.itemsize for n in (*at.steps, at.row, 1)]
    return as_strided(array.reshape(-1)[at.first :], shape, steps)


def sizes_of(call: AttentionCall, array: np.ndarray, name: str) -> tuple[int, ...]:
    """How many matrices; where it is not known, as many as an array has that is this tensor."""
    if call.sizes[0]:
        return call.sizes
    each = call.sizes[1] * call.sizes[2] * lines(call, name) * int(call.width)
    return (array.size // each, *call.sizes[1:])


def computed(call: AttentionCall, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Of tensors as matrices what a call writes, as matrices in float64."""
    q, k, v = (arrays[name].astype("float64") for name in "qkv")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        scores = np.einsum("...ik,...jk->...ij", q, k) * call.scale
        for one, array in zip(call.added, arrays.get("added", ()), strict=True):
            rows = np.arange(scores.size // call.columns)
            at = np.asarray(places_of(one, rows))[:, None] + np.arange(call.columns)
            scores += array.astype("float64").reshape(-1)[at].reshape(scores.shape)
        most = scores.max(-1, keepdims=True)
        powers = np.exp(scores - most)
        sums = powers.sum(-1, keepdims=True)
        p = powers / sums
        if call.direction == "forward":
            return {"out": p @ v, "logs": ((most + np.log(sums)) / np.log(2))[..., 0]}
        dout = arrays["dout"].astype("float64")
        weights = np.einsum("...ik,...jk->...ij", dout, v)
        wide = p * (weights - (p * weights).sum(-1, keepdims=True))
        ds = wide * call.scale
        turned = np.swapaxes(ds, -1, -2)
        made = {"dq": ds @ k, "dk": turned @ q, "dv": np.swapaxes(p, -1, -2) @ dout}
        return made | ({"wide": wide} if call.wide else {})


def operands_of(call: AttentionCall, arrays: Sequence[np.ndarray]) -> dict[str, Any]:
    """By name the matrices that a call reads, of its arrays; and what is added."""
    order, own = {"q": 0, "k": 1, "v": 2}, 3
    if call.direction == "backward":
        order, own = order | {"out": 3, "dout": 5}, 6
    found: dict[str, Any] = {name: view(call, name, arrays[i]) for name, i in order.items()}
    return found | {"added": arrays[own : own + len(call.added)]}


def results_of(call: AttentionCall, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """By name the matrices that a call writes, of its results' arrays."""
    names = PLACED[call.direction][-WRITTEN[call.direction] :]
    return {name: view(call, name, arrays[i]) for name, i in zip(names, call.results, strict=True)}


def packed(call: AttentionCall) -> Any:
    """The call as a function of TVM's tensors on the CPU."""
    read = (3 if call.direction == "forward" else 6) + len(call.added)

    def run(*tensors: Any) -> None:
        made = computed(call, operands_of(call, [t.numpy() for t in tensors[:read]]))
        outs = [np.full(t.shape, np.nan, numpy_dtype(str(t.dtype))) for t in tensors[read:]]
        for name, to in results_of(call, outs[:-1]).items():
            to[...] = made[name]
        if call.wide:
            outs[-2][...] = made["wide"].reshape(outs[-2].shape)
        outs[-1][...] = made["logs"].reshape(outs[-1].shape) if "logs" in made else 0
        for tensor, out in zip(tensors[read:], outs, strict=True):
            tensor.copyfrom(out)

    return run


class _Place(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_void_p), ("step", ctypes.c_int64 * OUTER), ("row", ctypes.c_int64),
    )  # fmt: skip


class _Call(ctypes.Structure):
    """`RelayWgradAttentionCall` of attention_call.h."""

    _fields_ = (
        *((name, _Place) for name in PLACED["backward"]),
        ("logs", ctypes.c_void_p), ("inner", ctypes.c_void_p),
        ("size", ctypes.c_int64 * OUTER), ("rows", ctypes.c_int64), ("columns", ctypes.c_int64),
        ("scale", ctypes.c_float), ("whole", ctypes.c_bool), ("wide", ctypes.c_void_p),
        ("masks", ctypes.c_int), ("added", AddedTensor * MASKS),
    )  # fmt: skip


def emulated(
    folder: Path, call: AttentionCall, arrays: Sequence[np.ndarray], races: bool = False
) -> int:
    """Runs a call on arrays, operands and then results; races that were found."""
    one = _Call()
    own = 3 if call.direction == "forward" else 6
    read = own + len(call.added)
    put_added(one, call.added, arrays[own:read])
    names, results = PLACED[call.direction], arrays[read:]
    one.wide = results[-2].ctypes.data if call.wide else None
    one.whole = True
    for i, (name, at) in enumerate(zip(names, call.places, strict=True)):
        is_read = i < len(names) - len(call.results)
        array = arrays[i if i < 4 else 5] if is_read else (
            results[call.results[i - len(names)]]
        )  # fmt: skip
        place = getattr(one, name)
        place.at, place.row = array.ctypes.data + at.first * array.itemsize, at.row
        place.step[:] = at.steps
        one.whole &= place.at % 16 == 0 and all(n % 8 == 0 for n in (at.row, *at.steps))
    logs, inner = (results[-1], None) if call.direction == "forward" else (arrays[4], results[-1])
    one.logs, one.inner = logs.ctypes.data, None if inner is None else inner.ctypes.data
    one.size[:] = call.sizes
    one.rows, one.columns, one.scale = call.rows, call.columns, call.scale
    library = _library(folder, ATTENTION.kernel_of(call), races)
    assert getattr(library, ATTENTION.kernel_of(call))(ctypes.byref(one), None) == 0
    return int(library.races_found()) if races else 0


@lru_cache(maxsize=64)
def _library(folder: Path, kernel: str, races: bool) -> Any:
    source = ATTENTION.source_of(kernel)
    launch = "template <typename... Parameters, typename... Arguments>\ncudaError_t launch("
    begin, end = source.index(launch), source.index("// Whether accesses of 16 bytes fit.")
    return built(folder, source[:begin] + source[end:], ["-D__grid_constant__="], races)


def place(shape: Sequence[int], order: Sequence[int], first: int = 0) -> Place:
    """Of matrices (sizes…, rows, width) of a tensor of this shape permuted by `order`."""
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    moved = [strides[axis] for axis in order]
    steps = [*moved[:-2], *[0] * (OUTER + 2 - len(moved))]
    return Place(first, tuple(steps), moved[-2])


def joined(
    dtype: str, width: int, rows: int, columns: int, sizes: tuple[int, int] = (2, 2),
    scale: float = 0.3,
) -> tuple[AttentionCall, AttentionCall]:  # fmt: skip
    """Both directions of heads as a projection has them: (images, rows, heads, width), and q, k
    and v parts of one tensor where there are as many rows as columns."""
    n, heads = sizes
    order, one = (0, 2, 1, 3), heads * width
    if rows == columns:
        parts = [place((n, rows, 3, heads, width), (0, 3, 1, 4), i * one) for i in range(3)]
    else:
        parts = [place((n, r, heads, width), order) for r in (rows, columns, columns)]
    out = place((n, rows, heads, width), order)
    forward = AttentionCall(
        "f", "forward", dtype, str(width), (n, heads, 1), rows, columns, scale, (*parts, out)
    )
    backward = replace(
        forward, direction="backward", places=(*parts, out, out, *parts),
        results=(0, 0, 0) if rows == columns else (0, 1, 2),
    )  # fmt: skip
    return forward, backward
