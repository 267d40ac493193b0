"""ONNX: `Conv` and `ConvTranspose` of images, (N, C, H, W).

`Conv` has its weight as (M, C/group, kH, kW), and `ConvTranspose` as (C, M/group, kH, kW), by its
own channels.  Its C are the forward convolution's K: both are OIHW of the forward convolution.

`ConvTranspose` without `output_shape` has (P-1)*s + o + e - begin - end rows.  With it, or with
auto_pad SAME_*, which asks for P*s, the padding follows: (P-1)*s + o + e - rows in all, the odd one
after for SAME_UPPER and before for everything else.  Where that is negative the rows that are
missing are zeros after the others; docs/explanation/transposed.md says what others make of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..attrs import as_ints, pair
from ..layouts import one_order
from ..problem import ConvKind
from . import common
from .common import NO_PAD, Conversion, Layouts, Pair, Quad, Written

CONV, TRANSPOSE = "ONNX Conv", "ONNX ConvTranspose"
AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
LAYOUTS: Layouts = one_order("NCHW")
_NAMES = ("kernel_shape", "strides", "dilations", "group")
_TENSORS = {"data": "X", "weight": "W", "groups": "group"}
_TRANSPOSED = {"grad": "X", "weight": "W", "groups": "group"}


def conv(
    x_shape: Any,
    w_shape: Any,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = 1,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = 1,
    dtype: str = "float32",
) -> Conversion:
    """The problem of a `Conv` node.

    Raises TypeError or ValueError naming the attribute, the rule and both values.
    """
    x, w = common.sizes(CONV, "X", x_shape), common.sizes(CONV, "W", w_shape)
    win = common.window(CONV, w[2:], strides, dilations, group, _NAMES)
    _same_kernel(CONV, kernel_shape, win.kernel)
    size = (x[2], x[3])
    auto, quad = _pads(CONV, auto_pad, pads)
    if auto.startswith("SAME"):
        ends = [same(auto, size[i], win.extents[i], win.strides[i]) for i in (0, 1)]
        quad = (ends[0][0], ends[1][0], ends[0][1], ends[1][1])
    return common.convolution(CONV, _TENSORS, x, w, win, quad, LAYOUTS, dtype)


def conv_transpose(
    x_shape: Any,
    w_shape: Any,
    *,
    auto_pad: str = "NOTSET",
    dilations: Any = 1,
    group: int = 1,
    kernel_shape: Any = None,
    output_padding: Any = 0,
    output_shape: Any = None,
    pads: Any = None,
    strides: Any = 1,
    dtype: str = "float32",
) -> Conversion:
    """The problem of a `ConvTranspose` node.  `output_shape` may name all four sizes, as some do.

    Raises TypeError or ValueError naming the attribute, the rule and both values.
    """
    x, w = common.sizes(TRANSPOSE, "X", x_shape), common.sizes(TRANSPOSE, "W", w_shape)
    win = common.window(TRANSPOSE, w[2:], strides, dilations, group, _NAMES)
    _same_kernel(TRANSPOSE, kernel_shape, win.kernel)
    extra = pair(TRANSPOSE, "output_padding", output_padding)
    common.least(TRANSPOSE, "output_padding", extra, 0)
    for o, s, d in zip(extra, win.strides, win.dilation, strict=True):
        if o >= max(s, d):
            raise ValueError(
                f"{TRANSPOSE}: output_padding must be less than strides or dilations, got {extra}"
                f" with {win.strides} and {win.dilation}"
            )
    pixels = (x[2], x[3])
    auto, quad = _pads(TRANSPOSE, auto_pad, pads if output_shape is None else None)
    wanted: Any = None
    if output_shape is not None:
        wanted = as_ints(TRANSPOSE, "output_shape", output_shape)[-2:]
        if len(wanted) != 2:
            raise ValueError(f"{TRANSPOSE}: output_shape must have 2 sizes, got {list(wanted)}")
        common.least(TRANSPOSE, "output_shape", wanted, 1)
    elif auto.startswith("SAME"):
        wanted = [pixels[i] * win.strides[i] for i in (0, 1)]
    full = [(pixels[i] - 1) * win.strides[i] + win.extents[i] + extra[i] for i in (0, 1)]
    starts, totals = rows(full, auto, quad, wanted)
    return common.transposed(
        TRANSPOSE, _TRANSPOSED, x, w, win, (starts[0], starts[1]), (totals[0], totals[1]),
        LAYOUTS, dtype,
    )  # fmt: skip


def to_conv(found: Any) -> Written:
    """The arguments of `conv` for a convolution: always explicit `pads`."""
    found = common.plain_conversion(f"to {CONV}", found, ConvKind.FPROP)
    return Written(_arguments(found) | {"pads": found.problem.padding})


def to_conv_transpose(found: Any) -> Written:
    """The arguments of `conv_transpose`: explicit `pads` and `output_padding`, and zeros to add."""
    found = common.plain_conversion(f"to {TRANSPOSE}", found, ConvKind.DGRAD)
    found = common.normal(found)
    p = found.problem
    axes = common.axes_of(found)
    sides = ((p.h, p.padding[0] + p.padding[2]), (p.w, p.padding[1] + p.padding[3]))
    extra = [size + pad - axis.full for (size, pad), axis in zip(sides, axes, strict=True)]
    arguments = _arguments(found) | {"pads": p.padding, "output_padding": (extra[0], extra[1])}
    return Written(arguments, found.around)


def same(auto_pad: str, size: int, extent: int, stride: int) -> Pair:
    """(begin, end) of one axis with SAME_UPPER or SAME_LOWER, for ceil(size / stride) windows."""
    return split_total(auto_pad, max((-(-size // stride) - 1) * stride + extent - size, 0))


def _same_kernel(op: str, given: Any, kernel: Pair) -> None:
    if given is not None and pair(op, "kernel_shape", given) != kernel:
        raise ValueError(f"{op}: kernel_shape must be W's, got {list(given)} and {list(kernel)}")


def _pads(op: str, auto_pad: Any, pads: Any) -> tuple[str, Quad]:
    auto = common.choice(op, "auto_pad", auto_pad, AUTO_PADS)
    if pads is None:
        return auto, NO_PAD
    values = as_ints(op, "pads", pads)
    if len(values) != 4:
        raise ValueError(f"{op}: pads must have 4 values, got {len(values)}: {list(values)}")
    common.least(op, "pads", values, 0)
    if auto != "NOTSET" and any(values):
        raise ValueError(
            f"{op}: pads and auto_pad exclude each other, got {list(values)} and {auto}"
        )
    return auto, (values[0], values[1], values[2], values[3])


def rows(
    full: Sequence[int], auto: str, padding: Sequence[int], wanted: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """(the first, how many) of the rows that a transposed convolution keeps of `full` along each
    axis: all but the padding, or as many as are wanted."""
    if wanted is None:
        return list(padding[: len(full)]), [
            n - before - after
            for n, before, after in zip(
                full, padding[: len(full)], padding[len(full) :], strict=True
            )
        ]
    starts = [split_total(auto, max(n - w, 0))[0] for n, w in zip(full, wanted, strict=True)]
    return starts, list(wanted)


def split_total(auto: str, total: int) -> Pair:
    """(before, after) of padding in all: the odd one after for SAME_UPPER, else before."""
    half = total // 2
    return (half, total - half) if auto == "SAME_UPPER" else (total - half, half)


def _arguments(found: Conversion) -> dict[str, Any]:
    p = common.in_layouts(found, LAYOUTS).problem
    return {
        "x_shape": p.canonical_shape(p.roles[0]),
        "w_shape": p.canonical_shape("weight"),
        "dilations": p.dilation,
        "group": p.groups,
        "strides": p.strides,
        "dtype": p.data_dtype,
    }
