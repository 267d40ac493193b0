"""PyTorch: `conv2d` and `conv_transpose2d` of `torch.nn.functional`, (N, C, H, W).

`conv2d` has its weight as (out, in/groups, kH, kW), `conv_transpose2d` as (in, out/groups, kH, kW),
by its own channels; both are OIHW of the forward convolution.  `padding` is the same at both ends,
and `output_padding`, or the module's `output_size`, adds rows after.  A padding of another kind is
a `pad` before a convolution, and a cut after a transposed one.
"""

from __future__ import annotations

from typing import Any

from ..attrs import as_ints, pair
from ..layouts import one_order
from ..problem import ConvKind
from . import common
from .common import Axis, Conversion, Layouts, Pair, Quad, Window, Written

CONV, TRANSPOSE = "PyTorch conv2d", "PyTorch conv_transpose2d"
LAYOUTS: Layouts = one_order("NCHW")
_NAMES = ("kernel_size", "stride", "dilation", "groups")
_TENSORS, _TRANSPOSED = {"data": "input"}, {"grad": "input"}


def conv2d(
    input_shape: Any,
    weight_shape: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    dtype: str = "float32",
) -> Conversion:
    """The problem of `torch.nn.functional.conv2d`, arguments in its order without the bias.

    `padding` may be 'valid' or 'same', which is for stride 1.
    Raises TypeError or ValueError naming the argument, the rule and both values.
    """
    x, w = common.sizes(CONV, "input", input_shape), common.sizes(CONV, "weight", weight_shape)
    win = common.window(CONV, w[2:], stride, dilation, groups, _NAMES)
    pads = _padding(padding, win)
    return common.convolution(CONV, _TENSORS, x, w, win, pads, LAYOUTS, dtype)


def conv_transpose2d(
    input_shape: Any,
    weight_shape: Any,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
    *,
    output_size: Any = None,
    dtype: str = "float32",
) -> Conversion:
    """The problem of `torch.nn.functional.conv_transpose2d`, arguments in its order without bias.

    `output_size` is what `torch.nn.ConvTranspose2d` takes when it is called, the last two of its
    sizes: it replaces `output_padding`.  An output padding may be a stride or more, below the
    dilation.

    Raises TypeError or ValueError naming the argument, the rule and both values.
    """
    op = TRANSPOSE
    x, w = common.sizes(op, "input", input_shape), common.sizes(op, "weight", weight_shape)
    win = common.window(op, w[2:], stride, dilation, groups, _NAMES)
    pads = common.least(op, "padding", pair(op, "padding", padding), 0)
    pixels = (x[2], x[3])
    base = [
        (pixels[i] - 1) * win.strides[i] + win.extents[i] - 2 * pads[i] for i in (0, 1)
    ]  # without output padding
    if output_size is None:
        extra = common.least(op, "output_padding", pair(op, "output_padding", output_padding), 0)
        for o, s, d in zip(extra, win.strides, win.dilation, strict=True):
            if o >= max(s, d):
                raise ValueError(
                    f"{op}: output_padding must be less than stride or dilation, got {extra} with"
                    f" {win.strides} and {win.dilation}"
                )
    else:
        sizes = as_ints(op, "output_size", output_size)
        if len(sizes) not in (2, 4):
            raise ValueError(f"{op}: output_size must have 2 or 4 sizes, got {list(sizes)}")
        extra = (sizes[-2] - base[0], sizes[-1] - base[1])
        for size, low, s in zip(sizes[-2:], base, win.strides, strict=True):
            if not low <= size < low + s:
                raise ValueError(
                    f"{op}: output_size must be from {low} to {low + s - 1} for stride {s}, got"
                    f" {size}"
                )
    return common.transposed(
        op, _TRANSPOSED, x, w, win, pads,
        (base[0] + extra[0], base[1] + extra[1]), LAYOUTS, dtype,
    )  # fmt: skip


def to_conv2d(found: Any) -> Written:
    """The arguments of `conv2d` for a convolution, and what to pad the input with before it."""
    found = common.normal(common.plain_conversion(f"to {CONV}", found, ConvKind.FPROP))
    p = found.problem
    # As much as both ends have is PyTorch's padding.
    even = _even(p.padding)
    pad = (
        p.padding[0] - even[0], p.padding[1] - even[1],
        p.padding[2] - even[0], p.padding[3] - even[1],
    )  # fmt: skip
    arguments = _arguments(found) | {"padding": even}
    n, c, h, w = p.canonical_shape("data")
    arguments["input_shape"] = (n, c, h + pad[0] + pad[2], w + pad[1] + pad[3])
    return Written(arguments, pad)


def to_conv_transpose2d(found: Any) -> Written:
    """The arguments of `conv_transpose2d`, and what to cut from its result or add to it."""
    found = common.normal(common.plain_conversion(f"to {TRANSPOSE}", found, ConvKind.DGRAD))
    p = found.problem
    made = [
        _symmetric(axis, max(axis.stride, dilation))
        for axis, dilation in zip(common.axes_of(found), p.dilation, strict=True)
    ]
    arguments = _arguments(found) | {
        "padding": (made[0][0], made[1][0]),
        "output_padding": (made[0][1], made[1][1]),
    }
    (top, bottom), (left, right) = made[0][2], made[1][2]
    return Written(arguments, (top, left, bottom, right))


def _symmetric(axis: Axis, limit: int) -> tuple[int, int, Pair]:
    """(padding, output padding below `limit`, what to add around the result) for an axis."""
    even = max(axis.start, 0)
    extra = axis.total - (axis.full - 2 * even)
    if axis.start < 0 or not 0 <= extra < limit:
        missing = max(axis.full - axis.start - axis.total, 0)  # what is cut after
        even = min(even, missing)
        extra = min(max(axis.total - (axis.full - axis.start), 0), limit - 1)
    size = axis.full - 2 * even + extra
    first = even - axis.start
    return even, extra, (first, axis.total - size - first)


def _even(padding: Quad) -> Pair:
    return min(padding[0], padding[2]), min(padding[1], padding[3])


def _padding(value: Any, win: Window) -> Quad:
    if not isinstance(value, str):
        v, h = common.least(CONV, "padding", pair(CONV, "padding", value), 0)
        return v, h, v, h
    if common.choice(CONV, "padding", value, ("valid", "same")) == "valid":
        return common.NO_PAD
    if max(win.strides) > 1:
        raise ValueError(f"{CONV}: padding 'same' needs stride 1, got {win.strides}")
    (top, left), (e, f) = ((e - 1) // 2 for e in win.extents), win.extents
    return top, left, e - 1 - top, f - 1 - left


def _arguments(found: Conversion) -> dict[str, Any]:
    p = common.in_layouts(found, LAYOUTS).problem
    return {
        "input_shape": p.canonical_shape(p.roles[0]),
        "weight_shape": p.canonical_shape("weight"),
        "stride": p.strides,
        "groups": p.groups,
        "dilation": p.dilation,
        "dtype": p.data_dtype,
    }
