"""Attributes of convolutions and pools, and what their builders take, by the axes of their windows.

The latter as facts of a `RelayOp`: one number stands for all axes, and is written out for each.
"""

from __future__ import annotations

from typing import Any

from ...layouts import ACTIVATIONS, KERNELS, swap_io
from .attributes import REQUIRED, Attr

_LAYOUTS, _WEIGHTS = {1: "NCW", **ACTIVATIONS}, {1: "OIW", **KERNELS}

# ---- attributes ----------------------------------------------------------------------------------


def _numbers(name: str, rank: int, value: int, asked: Any = ...) -> Attr:
    return Attr(name, (value,) * rank, "sizes", asked=asked)


def conv(rank: int) -> tuple[Attr, ...]:
    """A convolution's; Relay's builder of lines asks for numbers."""
    one, zero = (1, 0) if rank == 1 else (..., ...)
    return (
        _numbers("strides", rank, 1, one),
        _numbers("padding", max(rank, 2), 0, zero),  # of a line both sides
        _numbers("dilation", rank, 1, one), Attr("groups", 1, "int"),
        Attr("channels", None, "int?"), Attr("kernel_size", None, "sizes?"),
        Attr("data_layout", _LAYOUTS[rank], "str"), Attr("kernel_layout", _WEIGHTS[rank], "str"),
        Attr("out_layout", "", "str"), Attr("out_dtype", None, "dtype", asked=""),
    )  # fmt: skip


def conv_transpose(rank: int) -> tuple[Attr, ...]:
    """A transposed convolution's."""
    _, _, _, groups, channels, size, layout, _, *out = conv(rank)
    return (
        channels, size, _numbers("strides", rank, 1), _numbers("output_padding", rank, 0),
        _numbers("padding", rank, 0), _numbers("dilation", rank, 1), groups, layout,
        Attr("kernel_layout", swap_io(_WEIGHTS[rank]), "str"), *out,
    )  # fmt: skip


def layouts(rank: int) -> tuple[Attr, Attr]:
    """Those of a pool."""
    return Attr("layout", _LAYOUTS[rank], "str"), Attr("out_layout", "", "str")


def max_pool(rank: int) -> tuple[Attr, ...]:
    """A pool's of maxima."""
    return (
        Attr("pool_size", REQUIRED, "sizes", asked=(1,) * rank), _numbers("strides", rank, 1),
        _numbers("dilation", rank, 1), _numbers("padding", rank, 0), *layouts(rank),
        Attr("ceil_mode", False, "bool"),
    )  # fmt: skip


def avg_pool(rank: int) -> tuple[Attr, ...]:
    """A pool's of means."""
    return (*max_pool(rank), Attr("count_include_pad", False, "bool"))


def adaptive_pool(rank: int) -> tuple[Attr, ...]:
    """A pool's that is given the size of its result."""
    return (Attr("output_size", (), "sizes?", asked=None), *layouts(rank))


# ---- builders ------------------------------------------------------------------------------------

_DATA = {1: "(N, {0}, W)", 2: "(N, {0}, H, W)", 3: "(N, {0}, D, H, W)"}
_WEIGHT = {1: "({0}, {1}, S)", 2: "({0}, {1}, R, S)", 3: "({0}, {1}, T, R, S)"}
_RESULT = {1: "(N, {0}, Q)", 2: "(N, {0}, P, Q)", 3: "(N, {0}, Z, P, Q)"}
_PADDING = {
    1: "one integer or (left, right)",
    2: "one integer, (vertical, horizontal) or (top, left, bottom, right)",
    3: "one integer, one an axis or (front, top, left, back, bottom, right)",
}
_NAMES = {1: "width", 2: "height and width", 3: "depth, height and width"}


def conv_builder(rank: int) -> dict[str, Any]:
    """A convolution's."""
    doc = (
        f"A convolution: {_DATA[rank].format('C')} and {_WEIGHT[rank].format('K', 'C/groups')} to"
        f" {_RESULT[rank].format('K')}, or other layouts.\n\n`padding` is {_PADDING[rank]};"
        " `channels` is K and `kernel_size` the window's, which only repeat the weight's shape;"
        " `out_layout` is by default `data_layout`, `out_dtype` that of `data`."
    )
    return {"window": rank, "doc": doc}


def conv_transpose_builder(rank: int) -> dict[str, Any]:
    """A transposed convolution's."""
    signature = (
        "data, weight, strides, padding, dilation, groups, channels, kernel_size, data_layout,"
        " kernel_layout, out_layout, output_padding, out_dtype"
    )
    doc = (
        "A transposed convolution, the data gradient of a convolution with the same attributes.\n\n"
        f"{_DATA[rank].format('I')} and {_WEIGHT[rank].format('I', 'O/groups')} to"
        f" {_RESULT[rank].format('O')}; `padding` is {_PADDING[rank]}; `output_padding` adds to the"
        " result's sizes, at each axis' end."
    )
    return {"window": rank, "signature": signature, "doc": doc}


def backward_weight_builder(rank: int) -> dict[str, Any]:
    """A weight gradient's, whose layouts are in a convolution's fields."""
    signature = (
        "grad, data, strides, padding, dilation, groups, channels, kernel_size, grad_layout:"
        f" data_layout, data_layout: kernel_layout='{_LAYOUTS[rank]}', kernel_layout:"
        f" out_layout='{_WEIGHTS[rank]}', out_dtype"
    )
    doc = (
        "The weight gradient of a convolution with the same attributes.\n\n"
        f"The gradient of the result {_RESULT[rank].format('K')} and the data"
        f" {_DATA[rank].format('C')} to {_WEIGHT[rank].format('K', 'C/groups')}.\nRelay keeps the"
        " three layouts in conv2d's fields: the call's `data_layout` is `grad_layout`, its\n"
        "`kernel_layout` is `data_layout`, its `out_layout` is `kernel_layout`."
    )
    doc += "  Relay has no such operator." if rank == 3 else ""
    return {"window": rank, "signature": signature, "doc": doc}


def adaptive_pool_builder(rank: int, what: str) -> dict[str, Any]:
    """An adaptive pooling's, of "maxima" or "means"."""
    doc = f"The {what} of windows such that the result has this {_NAMES[rank]}, by default data's."
    return {"window": 0 if rank == 2 else rank, "doc": doc}  # of images one number is one in text


def pool_grad_builder(average: bool = False) -> dict[str, Any]:
    """A pooling's gradient, whose dilation Relay's builder leaves empty."""
    signature = "out_grad, data, pool_size, strides, padding, layout, out_layout, ceil_mode"
    signature += ", count_include_pad" if average else ""
    doc = f"The gradient of `{'avg' if average else 'max'}_pool2d` by its data."
    return {"absent": {"dilation": ()}, "signature": signature, "doc": doc}
