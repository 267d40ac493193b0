"""Softmax's calls: NumPy's numbers for them, and the kernels on a device that is the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from byoc_cudnn.softmax import SOFTMAX, Added, SoftmaxCall
from byoc_cudnn.softmax.call import MASKS, STEPS
from relay_wgrad.dtypes import MIXED, numpy_dtype
from tests.support import cuda_emulated

LIMITS = {"float16": 4e-4, "bfloat16": 3e-3, "float32": 1e-6}
"""How far results may be from float64's, relative to their norm."""


def values(call: SoftmaxCall, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A call's results in float64, of rows as long as they are."""
    first = _rows(call, arrays[0])
    if call.direction == "forward":
        logits = first * call.scale
        for one, array in zip(call.added, arrays[1:], strict=True):
            at = places_of(one, np.arange(len(logits)))[:, None] + np.arange(logits.shape[1])
            logits = logits + array.astype("float64").reshape(-1)[at]
        with np.errstate(invalid="ignore"):
            made = np.exp(logits - logits.max(-1, keepdims=True))
            return [made / made.sum(-1, keepdims=True)]
    weights = _rows(call, arrays[1])
    with np.errstate(invalid="ignore"):
        total = weights.sum(-1, keepdims=True)
        inner = (first * weights).sum(-1, keepdims=True) / np.where(total > 0, total, 1)
        slope = weights * (first - inner)
        return [slope * call.scale, *([slope] if call.wide else [])]


def _rows(call: SoftmaxCall, array: np.ndarray) -> np.ndarray:
    return array.astype("float64").reshape(-1, array.shape[-1])[:, : call.columns]


def places_of(one: Added, rows: np.ndarray) -> np.ndarray:
    """Where rows of these numbers begin."""
    digits = (
        (rows // divisor % count if count else rows // divisor) * stride
        for divisor, count, stride in one.steps
    )
    return np.asarray(sum(digits, np.zeros(len(rows), "int64")))


def packed(call: SoftmaxCall) -> Any:
    """The call as a function of TVM's tensors on the CPU; what is behind a row is 0."""

    def run(*tensors: Any) -> None:
        results = 1 + call.wide
        arrays = [t.numpy() for t in tensors]
        for out, made in zip(tensors[-results:], values(call, arrays[:-results]), strict=True):
            whole = np.zeros(out.shape, numpy_dtype(str(out.dtype)))
            whole.reshape(-1, out.shape[-1])[:, : call.columns] = made
            out.copyfrom(whole)

    return run


class _Step(ctypes.Structure):
    _fields_ = tuple((n, ctypes.c_int64) for n in ("divisor", "count", "stride"))


class AddedTensor(ctypes.Structure):
    """`RelayWgradAdded` of added_call.h."""

    _fields_ = (
        ("at", ctypes.c_void_p), ("kind", ctypes.c_int), ("steps", ctypes.c_int),
        ("step", _Step * STEPS),
    )  # fmt: skip


class _Call(ctypes.Structure):
    """`RelayWgradSoftmaxCall` of softmax_call.h."""

    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("source", "weights", "result", "wide")),
        *((n, ctypes.c_int64) for n in ("rows", "columns")),
        *((f"{n}_pitch", ctypes.c_int64) for n in ("source", "weights", "result")),
        ("scale", ctypes.c_float), ("masks", ctypes.c_int), ("added", AddedTensor * MASKS),
    )  # fmt: skip


def put_added(one: Any, added: Sequence[Added], arrays: Sequence[np.ndarray]) -> None:
    """Writes what is added, arrays from the first on, into a call."""
    one.masks = len(added)
    for i, (tensor, array) in enumerate(zip(added, arrays, strict=False)):
        to = one.added[i]
        to.at, to.kind, to.steps = array.ctypes.data, MIXED.index(tensor.dtype), len(tensor.steps)
        for step, numbers in zip(to.step, tensor.steps, strict=False):
            step.divisor, step.count, step.stride = numbers


def emulated(folder: Path, call: SoftmaxCall, arrays: Sequence[np.ndarray]) -> None:
    """Runs a call on (rows, pitch) arrays, operands and then results."""
    backward = call.direction == "backward"
    source, result = arrays[0], arrays[2 if backward else len(arrays) - 1]
    one = _Call()
    one.source, one.result = source.ctypes.data, result.ctypes.data
    one.rows, one.columns, one.scale = source.shape[0], call.columns, call.scale
    one.source_pitch, one.result_pitch = source.shape[1], result.shape[1]
    if backward:
        one.weights, one.weights_pitch = arrays[1].ctypes.data, arrays[1].shape[1]
        one.wide = arrays[3].ctypes.data if call.wide else None
    put_added(one, call.added, arrays[1:])
    kernel = SOFTMAX.kernel_of(call)
    own = cuda_emulated.loaded(folder, kernel)
    assert getattr(own, kernel)(ctypes.byref(one), None) == 0
