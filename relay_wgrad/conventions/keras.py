"""Keras and TensorFlow: `Conv2D` and `Conv2DTranspose`.

'same' of a convolution gives P = ceil(H / s) pixels, and pads (P-1)*s + e - H rows in all, the odd
one after.  `Conv2DTranspose` is the gradient of that convolution by its input.  Its own size is

    'same'   P*s, with output_padding o: (P-1)*s + e%2 + o
    'valid'  (P-1)*s + max(e, s), with o: (P-1)*s + e + o

with the extent e = dilation*(R-1) + 1, and what is cut before it the 'same' convolution's padding
for this size: max((P-1)*s + e - size, 0) // 2.  So an odd kernel with stride 2 loses nothing before
and one row after.

Kernels: `Conv2D` has (height, width, in/groups, out), `Conv2DTranspose` (height, width, out, in).
The transposed one's "in" is the forward convolution's output and the other way round: both are
HWIO of the forward convolution, and nothing is turned.  It was read out of Keras 3.15's and
TensorFlow 2.21's documentation, and is compared with what they compute in the tests.
"""

from __future__ import annotations

from typing import Any

from ..attrs import as_int, pair
from ..layouts import to_layout
from ..problem import ConvKind, ConvProblem
from ..rules import out_size
from . import common
from .common import Axis, Conversion, Layouts, Pair, Quad, Window, Written

CONV, TRANSPOSE = "Keras Conv2D", "Keras Conv2DTranspose"
PADDINGS = ("valid", "same")
FORMATS: dict[str, Layouts] = {
    "channels_last": ("NHWC", "HWIO", "NHWC"),
    "channels_first": ("NCHW", "HWIO", "NCHW"),
}
_NAMES = ("kernel_size", "strides", "dilation_rate", "groups")


def conv2d(
    input_shape: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = 1,
    groups: int = 1,
    *,
    dtype: str = "float32",
) -> Conversion:
    """The problem of `keras.layers.Conv2D`; its arguments follow the input's shape.

    Raises TypeError or ValueError naming the argument, the rule and both values.
    """
    win, mode, layouts = _read(
        CONV, kernel_size, strides, padding, data_format, dilation_rate, groups
    )
    n, channels, size = common.image(common.sizes(CONV, "input_shape", input_shape), layouts[0])
    pads: list[Pair] = [(0, 0), (0, 0)]
    if mode == "same":
        pads = [_same(size[i], win.extents[i], win.strides[i]) for i in (0, 1)]
    k = _filters(CONV, filters)
    quad: Quad = (pads[0][0], pads[1][0], pads[0][1], pads[1][1])
    return common.convolution(
        CONV, {}, (n, channels, *size), (k, None, *win.kernel), win, quad, layouts, dtype
    )


def conv2d_transpose(
    input_shape: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = 1,
    padding: str = "valid",
    output_padding: Any = None,
    data_format: str = "channels_last",
    dilation_rate: Any = 1,
    *,
    dtype: str = "float32",
) -> Conversion:
    """The problem of `keras.layers.Conv2DTranspose`; its arguments follow the input's shape.

    'same' with an even kernel and an output padding of 0 is what Keras' JAX backend makes of it;
    its TensorFlow backend refuses that case.

    Raises TypeError or ValueError naming the argument, the rule and both values.
    """
    win, mode, layouts = _read(
        TRANSPOSE, kernel_size, strides, padding, data_format, dilation_rate, 1
    )
    shape = common.sizes(TRANSPOSE, "input_shape", input_shape)
    n, channels, pixels = common.image(shape, layouts[2])
    extra: tuple[int | None, int | None] = (None, None)
    if output_padding is not None:
        extra = pair(TRANSPOSE, "output_padding", output_padding)
        common.least(TRANSPOSE, "output_padding", extra, 0)
        for o, s in zip(extra, win.strides, strict=True):
            if o >= s:
                raise ValueError(
                    f"{TRANSPOSE}: output_padding must be less than strides, got {extra} and"
                    f" {win.strides}"
                )
    totals = _each(lambda i: output_size(mode, pixels[i], win.extents[i], win.strides[i], extra[i]))
    starts = _each(lambda i: first_row(mode, pixels[i], win.extents[i], win.strides[i], totals[i]))
    return common.transposed(
        TRANSPOSE, {}, (n, channels, *pixels),
        (channels, _filters(TRANSPOSE, filters), *win.kernel), win, starts, totals, layouts, dtype,
    )  # fmt: skip


def to_conv2d(found: Any, data_format: str = "channels_last") -> Written:
    """The arguments of `conv2d` for a convolution, and zeros to put around the input before.

    Where neither padding of Keras' is that of the problem, it is 'valid' of a padded input.
    Raises ValueError where strides and dilation are both above 1, which Keras refuses.
    """
    found = common.plain_conversion(f"to {CONV}", found, ConvKind.FPROP)
    arguments = _arguments(CONV, found, data_format, (0, 0))
    arguments["groups"] = found.problem.groups
    for mode in PADDINGS:
        if all(_is_conv(mode, found.problem, i) for i in (0, 1)):
            return Written(arguments | {"padding": mode})
    arguments["padding"] = "valid"
    pad = found.problem.padding
    arguments["input_shape"] = _arguments(
        CONV, found, data_format, (pad[0] + pad[2], pad[1] + pad[3])
    )["input_shape"]
    return Written(arguments, pad)


def to_conv2d_transpose(found: Any, data_format: str = "channels_last") -> Written:
    """The arguments of `conv2d_transpose` for a transposed convolution, and what to cut or add.

    Where neither padding of Keras' is that of the problem, it is 'valid', and a part of its result.
    Raises ValueError for groups, and for strides and dilation both above 1: Keras has neither.
    """
    op = f"to {TRANSPOSE}"
    found = common.plain_conversion(op, found, ConvKind.DGRAD)
    p = found.problem
    if p.groups != 1:
        raise ValueError(f"{op}: Keras has it for one group, got groups={p.groups}")
    arguments = _arguments(TRANSPOSE, found, data_format, (0, 0))
    axes = common.axes_of(found)
    for mode in PADDINGS:
        spare = [_spare(mode, axis) for axis in axes]
        for none in (True, False):
            chosen = [None if none else o for o in spare]
            if all(_is(mode, axis, o) for axis, o in zip(axes, chosen, strict=True)):
                arguments["padding"] = mode
                arguments["output_padding"] = None if none else (spare[0], spare[1])
                return Written(arguments)
    arguments["padding"] = "valid"
    # All that taps reach; with an output padding where the problem has zeros after it.
    extra = [min(max(a.start + a.total - a.full, 0), a.stride - 1) for a in axes]
    arguments["output_padding"] = (extra[0], extra[1])
    top, left = (-a.start for a in axes)
    bottom, right = (a.start + a.total - a.full - o for a, o in zip(axes, extra, strict=True))
    return Written(arguments, (top, left, bottom, right))


def _each(of: Any) -> Pair:
    return of(0), of(1)


def _read(
    op: str, kernel: Any, strides: Any, padding: Any, data_format: Any, dilation: Any, groups: Any
) -> tuple[Window, str, Layouts]:
    win = common.window(op, kernel, strides, dilation, groups, _NAMES)
    if max(win.strides) > 1 and max(win.dilation) > 1:
        raise ValueError(
            f"{op}: strides above 1 and dilation_rate above 1 exclude each other, got"
            f" {win.strides} and {win.dilation}"
        )
    mode = padding.lower() if isinstance(padding, str) else padding  # as Keras reads it
    mode = common.choice(op, "padding", mode, PADDINGS)
    return win, mode, FORMATS[common.choice(op, "data_format", data_format, tuple(FORMATS))]


def _filters(op: str, value: Any) -> int:
    return int(common.least(op, "filters", as_int(op, "filters", value), 1))


def _same(size: int, extent: int, stride: int) -> Pair:
    """(before, after) of a convolution's 'same'."""
    total = max((-(-size // stride) - 1) * stride + extent - size, 0)
    return total // 2, total - total // 2


def _is_conv(mode: str, p: ConvProblem, i: int) -> bool:
    """Whether a convolution's axis is what a mode gives: what is after only makes the pixels."""
    size, kernel, stride = (p.h, p.w)[i], (p.r, p.s)[i], p.strides[i]
    extent = common.extent(kernel, p.dilation[i])
    before, after = _same(size, extent, stride) if mode == "same" else (0, 0)
    pixels = out_size(size, before + after, extent, stride, 1)
    return (before, pixels) == (p.padding[i], (p.p, p.q)[i])


def output_size(mode: str, pixels: int, extent: int, stride: int, extra: int | None) -> int:
    """Rows of a transposed convolution with 'valid' or 'same'; `extra`: its output padding."""
    if mode == "valid":
        return (pixels - 1) * stride + (max(extent, stride) if extra is None else extent + extra)
    return pixels * stride if extra is None else (pixels - 1) * stride + extent % 2 + extra


def first_row(mode: str, pixels: int, extent: int, stride: int, size: int) -> int:
    """Which row of all that taps reach its first one is, for so many of them."""
    return 0 if mode == "valid" else max((pixels - 1) * stride + extent - size, 0) // 2


def _spare(mode: str, axis: Axis) -> int:
    """The output padding with which a mode gives the axis' size."""
    return axis.total - output_size(mode, axis.pixels, axis.extent, axis.stride, 0)


def _is(mode: str, axis: Axis, extra: int | None) -> bool:
    """Whether a mode with an output padding gives the axis."""
    if extra is not None and not 0 <= extra < axis.stride:
        return False
    size = output_size(mode, axis.pixels, axis.extent, axis.stride, extra)
    start = first_row(mode, axis.pixels, axis.extent, axis.stride, size)
    return (start, size) == (axis.start, axis.total)


def _arguments(op: str, found: Conversion, data_format: str, more: Pair) -> dict[str, Any]:
    """What both layers take; `more` rows and columns of input than the problem has."""
    layouts = FORMATS[common.choice(f"to {op}", "data_format", data_format, tuple(FORMATS))]
    p = common.in_layouts(found, layouts).problem
    if max(p.strides) > 1 and max(p.dilation) > 1:
        raise ValueError(
            f"to {op}: Keras has no strides above 1 with dilation_rate above 1, got {p.strides} and"
            f" {p.dilation}"
        )
    first = p.roles[0]
    n, channels, h, w = p.canonical_shape(first)
    shape = to_layout((n, channels, h + more[0], w + more[1]), "NCHW", p.layout(first))
    return {
        "input_shape": shape,
        "filters": p.c if p.kind is ConvKind.DGRAD else p.k,
        "kernel_size": (p.r, p.s),
        "strides": p.strides,
        "data_format": data_format,
        "dilation_rate": p.dilation,
        "dtype": p.data_dtype,
    }
