"""Backward of max pooling where a channel's pixels follow each other in memory: plane by plane.

A task has one channel of one image.  It looks for the first maximum of each window, and adds the
window's gradient there, in the order of the windows.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from relay_wgrad.dtypes import HALVES
from relay_wgrad.keys import NO_ALIAS

from .words.axes import Axis
from .words.loops import argument, bind, cast, flat, int64, local, parallel, serial, when, zero


def planes(
    shape: tuple[int, ...],
    out: tuple[int, ...],
    dtype: str,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    before: tuple[int, int],
) -> tirx.PrimFunc:
    """The kernel (gradient of the result, data, gradient of the data), destination-passing.

    `shape` is the data's (N, C, H, W), `out` the result's; `before` the padding above and left.
    """
    n, c, h, w = shape
    p, q = out[2:]
    # What is compared and added: TVM's half-precision types are converted for each operation, and
    # sums of them are float32's.
    wide = "float32" if dtype in HALVES else dtype
    axes = [
        Axis(False, shape[2 + i], out[2 + i], kernel[i], strides[i], dilation[i], before[i])
        for i in (0, 1)
    ]
    taps = [axis.taps(0) for axis in axes]
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({NO_ALIAS: True})
        sizes = {"grad": out, "data": shape, "result": shape}
        buffers = {name: argument(name, dtype, size) for name, size in sizes.items()}
        grad, data, result = (flat(buffers[name], dtype, size) for name, size in sizes.items())
        with parallel(n * c) as (plane,):
            source, gradient = bind(plane * (h * w)), bind(plane * (p * q))
            # Sums: in the result, or for half precision beside it.
            sums, start = (result, source) if wide == dtype else (local("sums", h * w, wide), 0)
            with serial(h * w) as i:
                T.buffer_store(sums, zero(wide), [int64(start + i)])
            with serial(p) as row, serial(q) as column:
                most, place = local("most", 1, wide), local("place", 1, "int64")
                T.buffer_store(place, int64(-1), [int64(0)])
                T.buffer_store(most, zero(wide), [int64(0)])
                low_r, high_r = axes[0].reached(taps[0], row)
                low_s, high_s = axes[1].reached(taps[1], column)
                corner = bind(
                    source + (row * strides[0] - before[0]) * w + column * strides[1] - before[1]
                )
                with serial(high_r, low_r) as r, serial(high_s, low_s) as s:
                    at = bind(corner + r * (dilation[0] * w) + s * dilation[1])
                    value = bind(cast(data[int64(at)], wide, 1))
                    # The first pixel, a larger one, or NaN, as in PyTorch.
                    is_more = tirx.any(value > most[int64(0)], tirx.isnan(value))
                    taken = bind(tirx.any(place[int64(0)] < 0, is_more))
                    T.buffer_store(most, tirx.Select(taken, value, most[int64(0)]), [int64(0)])
                    T.buffer_store(
                        place, tirx.Select(taken, int64(at), place[int64(0)]), [int64(0)]
                    )
                at = bind(place[int64(0)])
                with when(at >= 0):
                    more = bind(cast(grad[int64(gradient + row * q + column)], wide, 1))
                    place_in = int64(at - source + start)
                    T.buffer_store(sums, sums[place_in] + more, [place_in])
            if wide != dtype:
                with serial(h * w) as i:
                    value = sums[int64(i)].astype(dtype)
                    T.buffer_store(result, value, [int64(source + i)])
    return builder.get()
