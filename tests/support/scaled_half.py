"""Scaled float16 operands of weight gradients: cases, tf32's rounding, the kernel on a CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from byoc_cudnn.backends.cudnn.scaled_half import KERNEL, source
from tests.support.cuda_emulated import emulated, library

Array = np.ndarray[Any, Any]
BOUNDS = (7, 8)  # of the data's and the gradient's norms, `kDataBound` and `kGradBound`

CORNERS = tuple(
    f"wgrad {line} layout=NDHWC/ODHWI/NDHWC"
    for line in (
        "n=2 c=32 d=8 h=10 w=12 k=64 t=3 r=3 s=3 pad=1,1,1,1,1,1",
        "n=1 c=64 d=9 h=9 w=9 k=32 t=3 r=3 s=3 stride=2,2,2 pad=1,1,1,1,1,1",
        "n=2 c=16 d=6 h=7 w=8 k=32 t=3 r=3 s=3 pad=1,1,1,1,1,1 groups=2",
        "n=2 c=24 d=8 h=6 w=6 k=40 t=2 r=2 s=2 stride=2,2,2",
        "n=1 c=8 d=1 h=1 w=1 k=8 t=1 r=1 s=1",
        "n=1 c=320 d=4 h=4 w=4 k=320 t=3 r=3 s=3 pad=1,1,1,1,1,1",
        "n=1 c=2056 d=1 h=3 w=3 k=8 t=1 r=1 s=1",
    )
)


def cases(rng: np.random.Generator, rows: int, c: int, k: int) -> dict[str, tuple[Array, Array]]:
    """Data of `rows` pixels and c channels and gradients of k, by what is hard of them."""

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape)

    spikes = normal(rows, c), normal(rows, k)
    for values in spikes:
        values[rng.integers(rows)] *= 1e6
    found = {
        "normal": (normal(rows, c), normal(rows, k)),
        "positive": (abs(normal(rows, c)), abs(normal(rows, k))),
        "behind a relu": (np.maximum(normal(rows, c), 0), normal(rows, k)),
        "heavy tails": (rng.standard_t(1.5, (rows, c)), rng.standard_t(1.5, (rows, k))),
        "channels apart": (
            normal(rows, c) * 10 ** rng.uniform(-6, 6, c),
            normal(rows, k) * 10 ** rng.uniform(-12, 6, k),
        ),
        "numbers apart": (
            normal(rows, c) * 10 ** rng.uniform(-6, 0, (rows, c)),
            normal(rows, k) * 10 ** rng.uniform(-6, 0, (rows, k)),
        ),
        "spikes": spikes,
        "large": (normal(rows, c) * 1e36, normal(rows, k) * 1e-12),
        "small": (normal(rows, c) * 1e-37, normal(rows, k) * 1e14),
        "zeros": (normal(rows, c) * (np.arange(c) % 3 > 0), normal(rows, k) * (np.arange(k) % 2)),
    }
    return {name: (x.astype(np.float32), y.astype(np.float32)) for name, (x, y) in found.items()}


def tf32(values: Array) -> Array:
    """Rounded to tf32, to the nearest, as float64."""
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


def errors(got: Array, want: Array) -> Array:
    """Relative in norm: of all, of the worst filter, of the worst channel."""
    out = []
    for axis in (None, 1, 0):
        gone, norm = (np.linalg.norm(a, axis=axis) for a in (got - want, want))
        out.append(np.max(np.where(norm > 0, gone / np.where(norm > 0, norm, 1), gone)))
    return np.array(out)


def specials(rng: np.random.Generator, rows: int, channels: int) -> tuple[Array, Array, Array]:
    """(x, y, what y^T x is in float64) with NaN, infinities and zeros in columns of their own."""
    x, y = (rng.standard_normal((rows, channels)).astype(np.float32) for _ in range(2))
    x *= np.float32(1e20)
    y *= np.float32(1e-22)
    x[3, 1], x[5, 2], y[9, 4], y[:, 6] = np.nan, np.inf, -np.inf, 0
    with np.errstate(invalid="ignore"):
        return x, y, y.astype(np.float64).T @ x.astype(np.float64)


def expect_specials(got: Array, want: Array) -> None:
    """NaN and infinity where float64 has them, and the rest as near as float16 is."""
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(np.isinf(got), np.isinf(want))
    there = np.isfinite(want)
    assert np.linalg.norm(got[there] - want[there]) < 2e-3 * np.linalg.norm(want[there])


class _Side(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("from_", "to", "squares", "exponent")),
        ("rows", ctypes.c_int64), ("channels", ctypes.c_int), ("bound", ctypes.c_int),
    )  # fmt: skip


class _Call(ctypes.Structure):
    """`RelayWgradScaledCall` of scaled_half_call.h."""

    _fields_ = (
        ("side", _Side * 2), ("blocks", ctypes.c_int), ("made", ctypes.c_void_p),
        ("result", ctypes.c_void_p), ("per_filter", ctypes.c_uint), ("channels", ctypes.c_int),
        ("filters", ctypes.c_int), ("restore", ctypes.c_bool),
    )  # fmt: skip


def on_cpu(folder: Path) -> Any:
    """The kernel, built by g++ for `cuda_emulated.h`."""
    return library(emulated(source()), folder / "scaled.so")[KERNEL]


def scaled(kernel: Any, x: Array, y: Array, groups: int, blocks: int, make: Any) -> Array:
    """The kernel's passes around `make`, which has the scaled operands and gives their gradient.

    x, y : (rows, channels), at 16 bytes.  The result has shape (K, taps, C of a group), as what
    `make` gives, in float16.  All memory begins as NaN.
    """
    call, kept = _Call(blocks=blocks), []
    for i, values in enumerate((x, y)):
        rows, channels = values.shape
        half = np.full(values.shape, np.nan, np.float16)
        squares, exponent = (
            np.full((blocks, channels), np.nan),
            np.full(channels, -1 << 30, np.int32),
        )
        kept.append((half, exponent, squares))
        places = [a.ctypes.data for a in (values, half, squares, exponent)]
        call.side[i] = _Side(*places, rows, channels, BOUNDS[i])
    assert kernel(ctypes.byref(call), None) == 0
    made = np.ascontiguousarray(make(kept[0][0], kept[1][0]), np.float16)
    filters, taps, channels = made.shape
    result = np.full(made.shape, np.nan, np.float32)
    call.made, call.result, call.restore = made.ctypes.data, result.ctypes.data, True
    call.per_filter, call.channels = taps * channels, channels
    call.filters = filters // groups
    assert kernel(ctypes.byref(call), None) == 0
    return result
