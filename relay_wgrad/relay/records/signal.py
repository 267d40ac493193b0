"""Fourier transforms of windows of a signal."""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx

from ..types import TensorType, Type
from .relations import agree, mapped
from .table import Attr, Call, Site, define, show
from .te import program, rank


def _stft_type(call: Call) -> Type:
    data, window, a = rank(call, 0, 2), rank(call, 1, 1), call.attrs
    size, hop, width = a["n_fft"], a["hop_length"], a["win_length"]
    if min(size, hop, width) < 1 or width > size:
        call.fail(
            "takes 1 <= win_length <= n_fft and a hop_length from 1, got"
            f" win_length={width}, n_fft={size}, hop_length={hop}"
        )
    if not agree(window.shape[0], width):
        call.fail(f"window must be of win_length={width}, got {show(window)}")
    length = data.shape[1]
    if isinstance(length, int) and length < size:
        call.fail(f"a signal of {length} is shorter than n_fft={size}")
    rows = size // 2 + 1 if a["onesided"] else size
    columns = mapped(length, lambda n: (n - size) // hop + 1)
    return TensorType((data.shape[0], rows, columns, 2), data.dtype)


def _stft(s: Site) -> Any:
    """Of frame m: the sums of data[m hop + k] window[k] by cos and -sin of 2 pi w k / n."""
    a, dtype = s.attrs, s.tensor().dtype
    size, hop, width = a["n_fft"], a["hop_length"], a["win_length"]
    before = (size - width) // 2  # a window that is shorter stands in the middle
    scale = 1 / math.sqrt(size) if a["normalized"] else 1.0
    shape = s.sizes(s.out)

    def transformed(s: Site, data: Any, window: Any) -> Any:
        k = te.reduce_axis((0, width), "k")

        def at(b: Any, w: Any, m: Any, part: Any) -> Any:
            place = k + before
            turn = tirx.floormod(w * place, size).astype("float64") * (2 * math.pi / size)
            wave = tirx.Select(part == 0, te.cos(turn), -te.sin(turn)) * scale
            value = data[b, m * hop + place].astype("float64") * window[k].astype("float64")
            return te.sum(value * wave, k)

        sums = te.compute(shape, at)
        return te.compute(shape, lambda *i: sums[i].astype(dtype))

    return program(s, transformed, *s.args)


define("stft", "data window", _stft_type, _stft, "numpy", Attr("n_fft", -1, "int"),
       Attr("hop_length", -1, "int"), Attr("win_length", -1, "int"),
       Attr("normalized", False, "bool"), Attr("onesided", True, "bool"))  # fmt: skip
