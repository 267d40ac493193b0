"""Backward of max pooling in two kernels: which tap each maximum is, and the gradient's sums.

The first reads the data, and can run as soon as these are there: what is kept until the second is a
byte for each result then (`pipeline.kernel_order` runs it early where nothing else reads the data
any more).  The second adds for each pixel the gradients of those windows whose maximum it is, in
the order of the windows.

Channels are last: planes that follow each other in memory, NCHW, are as many images of one channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from relay_wgrad.dtypes import wide_of
from relay_wgrad.keys import NO_ALIAS

from .emitters.axes import Axis
from .emitters.loops import (
    Expr,
    argument,
    bind,
    cast,
    flat,
    int64,
    local,
    parallel,
    serial,
    splat,
    vector,
    when,
    zero,
)

_LANES, _VECTORS = 16, 4  # of a vector as written; of a task's channels at a time, at most
_BYTE = 255  # taps that a byte can tell from each other, and from none


@dataclass(frozen=True)
class Window:
    """Max pooling of n images of c channels, of pixels (height, width): `data` of them to `out`.

    n : may be symbolic.
    planes : whether the layout is NCHW, else NHWC.
    """

    n: Expr
    c: int
    planes: bool
    dtype: str
    data: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]  # the padding above and left

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def images(self) -> Expr:
        """As the kernels count them."""
        return self.n * self.c if self.planes else self.n

    @property
    def channels(self) -> int:
        """Of one of those images."""
        return 1 if self.planes else self.c

    def shape(self, pixels: tuple[int, int]) -> tuple[Expr, ...]:
        """Of a tensor of so many pixels."""
        return (self.n, self.c, *pixels) if self.planes else (self.n, *pixels, self.c)

    @property
    def wide(self) -> str:
        """What is compared and added: TVM's half-precision types are converted for each operation,
        and sums of them are float32's."""
        return wide_of(self.dtype)

    @property
    def taps_dtype(self) -> str:
        """Of the tensor that tells each maximum's tap, r · (the kernel's width) + s."""
        return "uint8" if self.taps <= _BYTE else "int32"

    @property
    def none(self) -> int:
        """In place of a tap where a window has no pixel."""
        return _BYTE if self.taps <= _BYTE else self.taps

    def axes(self, *, dgrad: bool) -> list[Axis]:
        size, out = (self.out, self.data) if dgrad else (self.data, self.out)
        rest = zip(size, out, self.kernel, self.strides, self.dilation, self.before, strict=True)
        return [Axis(dgrad, *sizes) for sizes in rest]

    def inner(self) -> tuple[int, int]:
        """The first of the columns whose windows are all within the data, and the last but one."""
        reach, stride = (self.kernel[1] - 1) * self.dilation[1], self.strides[1]
        first = min(-(-self.before[1] // stride), self.out[1])
        last = (self.data[1] - 1 - reach + self.before[1]) // stride + 1
        return first, max(first, min(last, self.out[1]))

    def is_empty(self, axis: int) -> bool:
        """Whether a window may be beside the data."""
        k, s, d, b = (x[axis] for x in (self.kernel, self.strides, self.dilation, self.before))
        rows = range(self.data[axis])
        return not all(
            any(p * s - b + r * d in rows for r in range(k)) for p in range(self.out[axis])
        )


def first_maxima(window: Window) -> tirx.PrimFunc:
    """The kernel (data, taps), destination-passing: the first maximum's tap of each window.

    Of NaN the last, as in PyTorch.
    """
    wide, channels = window.wide, window.channels
    count = "int64" if wide == "float64" else "int32"  # as wide as what is compared
    (h, w), (p, q), kernel = window.data, window.out, window.kernel
    axes = window.axes(dgrad=False)
    tensors = {"data": (window.data, window.dtype), "taps": (window.out, window.taps_dtype)}

    def maxima(
        data: Expr, taps: Expr, image: Expr, row: Expr, column: Expr, columns: Any, start: Expr,
        vectors: int, lanes: int, step: int,
    ) -> None:  # fmt: skip
        """Of so many neighbours from a channel on, whose data are `step` apart; `columns`: the
        first tap of a row, and the last but one."""
        low, high = zip(axes[0].reached(axes[0].taps(0), row), columns, strict=True)
        top = row * window.strides[0] - window.before[0]
        left = column * window.strides[1] - window.before[1]
        most, best = (local(n, vectors * lanes, t) for n, t in (("most", wide), ("best", count)))
        parts = [(vector(i * lanes, lanes), i * lanes) for i in range(vectors)]

        def place(r: Expr, s: Expr) -> Expr:
            y, x = top + r * window.dilation[0], left + s * window.dilation[1]
            return bind(((image * h + y) * w + x) * channels + start)

        def value(at: Expr, offset: int) -> Expr:
            return bind(cast(data[vector(at + offset * step, lanes, step)], wide, lanes))

        def tap(r: Expr, s: Expr) -> Expr:
            return splat(bind((int64(r) * kernel[1] + s).astype(count)), lanes)

        for here, _ in parts:
            T.buffer_store(best, splat(tirx.const(window.none, count), lanes), [here])
            T.buffer_store(most, zero(wide, lanes), [here])
        may_be_empty = any(window.is_empty(axis) for axis in (0, 1))
        there = tirx.all(*(int64(a) < b for a, b in zip(low, high, strict=True)))
        with when(there if may_be_empty else True):
            at, first = place(*low), tap(*low)
            for here, offset in parts:
                T.buffer_store(best, first, [here])
                T.buffer_store(most, value(at, offset), [here])
            with serial(high[0], low[0]) as r, serial(high[1], low[1]) as s:
                at, this = place(r, s), tap(r, s)
                for here, offset in parts:
                    found = value(at, offset)
                    # Choices in turn: of conjunctions of vectors TVM's simplifier fails.
                    for kept, new in ((best, this), (most, found)):
                        larger = tirx.Select(found > most[here], new, kept[here])
                        chosen = tirx.Select(tirx.isnan(found), new, larger)
                        T.buffer_store(kept, chosen, [here])
        target = bind(((image * p + row) * q + column) * channels + start)
        for here, offset in parts:
            found = cast(best[here], window.taps_dtype, lanes)
            T.buffer_store(taps, found, [vector(target + offset, lanes)])

    def body(data: Expr, taps: Expr, image: Expr, row: Expr) -> None:
        task = (data, taps, image, row)

        def column_of_channels(column: Expr) -> None:
            columns = axes[1].reached(axes[1].taps(0), column)

            def chunk(start: Expr, vectors: int, lanes: int) -> None:
                maxima(*task, column, columns, start, vectors, lanes, 1)

            _chunks(channels, chunk)

        if channels > 1:
            with serial(q) as column:
                column_of_channels(column)
            return
        # Columns are neighbours; those whose windows are within the data have the same taps.
        first, last = window.inner()
        for start, end in ((0, first), (last, q)):
            if start < end:
                with serial(end, start) as column:
                    column_of_channels(column)
        lanes = min(_LANES, 1 << max((last - first).bit_length() - 1, 0))
        if last > first:
            with serial(-(-(last - first) // lanes)) as i:
                # The last ones may have been made before, in the same way.
                column = bind(T.min(first + i * lanes, int64(last - lanes)))
                maxima(*task, column, (0, kernel[1]), 0, 1, lanes, window.strides[1])

    return _kernel(window, tensors, (window.images, p), body)


def sums(window: Window) -> tirx.PrimFunc:
    """The kernel (gradient of the result, taps, gradient of the data), destination-passing."""
    tensors = {
        "grad": (window.out, window.dtype), "taps": (window.out, window.taps_dtype),
        "result": (window.data, window.dtype),
    }  # fmt: skip
    if window.planes:
        return _kernel(window, tensors, (window.images,), _scattered(window))
    return _kernel(window, tensors, (window.images, window.data[0]), _gathered(window))


def _gathered(window: Window) -> Callable[..., None]:
    """A row of pixels: each looks at the windows that it is in."""
    wide, channels = window.wide, window.channels
    (h, w), (p, q), kernel = window.data, window.out, window.kernel
    axes = window.axes(dgrad=True)

    def pixel(grad: Expr, taps: Expr, result: Expr, image: Expr, row: Expr, column: Expr) -> None:
        outputs = [bind(i // axis.phases) for i, axis in zip((row, column), axes, strict=True)]
        found = [
            axis.taps(bind(i % axis.phases)) for i, axis in zip((row, column), axes, strict=True)
        ]
        (low, high), (left, right) = (
            axis.reached(taps, a) for axis, taps, a in zip(axes, found, outputs, strict=True)
        )

        def chunk(start: Expr, vectors: int, lanes: int) -> None:
            total = local("total", vectors * lanes, wide)
            parts = [(vector(i * lanes, lanes), i * lanes) for i in range(vectors)]
            for here, _ in parts:
                T.buffer_store(total, zero(wide, lanes), [here])
            with serial(high, low) as i, serial(right, left) as j:
                y, x = (
                    a * axis.scale + t.offset + n * t.reach
                    for a, axis, t, n in zip(outputs, axes, found, (i, j), strict=True)
                )
                # Taps count from the last one back.
                r, s = (
                    size - 1 - (t.first + n * t.step)
                    for size, t, n in zip(kernel, found, (i, j), strict=True)
                )
                tap = bind((int64(r) * kernel[1] + s).astype("int32"))
                at = bind(((image * p + y) * q + x) * channels + start)
                for here, offset in parts:
                    source = vector(at + offset, lanes)
                    is_it = cast(taps[source], "int32", lanes) == splat(tap, lanes)
                    value = cast(grad[source], wide, lanes)
                    more = tirx.Select(is_it, value, zero(wide, lanes))
                    T.buffer_store(total, total[here] + more, [here])
            target = bind(((image * h + row) * w + column) * channels + start)
            for here, offset in parts:
                value = cast(total[here], window.dtype, lanes)
                T.buffer_store(result, value, [vector(target + offset, lanes)])

        _chunks(channels, chunk)

    def body(grad: Expr, taps: Expr, result: Expr, image: Expr, row: Expr) -> None:
        with serial(window.data[1]) as column:
            pixel(grad, taps, result, image, row, column)

    return body


def _scattered(window: Window) -> Callable[..., None]:
    """A plane: each window's gradient is added where its maximum is."""
    wide, dtype = window.wide, window.dtype
    (h, w), (p, q) = window.data, window.out

    def body(grad: Expr, taps: Expr, result: Expr, plane: Expr) -> None:
        source, target = bind(plane * (p * q)), bind(plane * (h * w))
        # Sums: in the result, or for half precision beside it.
        total, start = (result, target) if wide == dtype else (local("sums", h * w, wide), 0)
        with serial(h * w) as i:
            T.buffer_store(total, zero(wide), [int64(start + i)])
        with serial(p) as row, serial(q) as column:
            at = bind(source + row * q + column)
            tap = bind(taps[int64(at)].astype("int32"))
            y = row * window.strides[0] - window.before[0]
            x = column * window.strides[1] - window.before[1]
            y += int64(tap // window.kernel[1]) * window.dilation[0]
            x += int64(tap % window.kernel[1]) * window.dilation[1]
            with when(tap != window.none if any(map(window.is_empty, (0, 1))) else True):
                place = bind(int64(start + y * w + x))
                more = cast(grad[int64(at)], wide, 1)
                T.buffer_store(total, total[place] + more, [place])
        if wide != dtype:
            with serial(h * w) as i:
                T.buffer_store(result, total[int64(i)].astype(dtype), [int64(target + i)])

    return body


def _kernel(
    window: Window,
    tensors: dict[str, tuple[tuple[int, int], str]],
    tasks: tuple[Expr, ...],
    body: Callable[..., None],
) -> tirx.PrimFunc:
    """`body` gets the memory of the arguments, and the task's number in a grid of so many.
    `tensors`: the arguments' pixels and dtypes."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({NO_ALIAS: True})
        shapes = {name: (window.shape(size), dtype) for name, (size, dtype) in tensors.items()}
        buffers = {name: argument(name, dtype, size) for name, (size, dtype) in shapes.items()}
        memory = [flat(buffers[name], dtype, size) for name, (size, dtype) in shapes.items()]
        # A function of one operand must be a block, or TVM fails to ask whether it is a reshape.
        with T.sblock("root"):
            T.reads([])
            T.writes([])
            with parallel(*tasks) as task:
                body(*memory, *task)
    return builder.get()


def _chunks(channels: int, chunk: Callable[[Expr, int, int], None]) -> None:
    """`chunk(first channel, vectors, lanes)` for all channels: in a loop, then for the rest."""
    most = _LANES * _VECTORS
    done = channels // most * most
    if done:
        with serial(channels // most) as i:
            chunk(bind(i * most), _VECTORS, _LANES)
    while done < channels:
        lanes = min(_LANES, 1 << ((channels - done).bit_length() - 1))
        vectors = (channels - done) // lanes if lanes == _LANES else 1
        chunk(done, vectors, lanes)
        done += vectors * lanes
