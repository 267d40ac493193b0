"""Attributes of convolutions and pools, and what their builders take, by the axes of their windows.

The latter as facts of a `RelayOp`: one number stands for all axes, and is written out for each.
"""

from __future__ import annotations

from typing import Any

from ...layouts import ACTIVATIONS, KERNELS, swap_io
from .attributes import REQUIRED, Attr

_LAYOUTS, _WEIGHTS = {1: "NCW", **ACTIVATIONS}, {1: "OIW", **KERNELS}

# ---- attributes ----------------------------------------------------------------------------------


def _numbers(name: str, rank: int, value: int) -> Attr:
    return Attr(name, (value,) * rank, "sizes")


def conv(rank: int) -> tuple[Attr, ...]:
    """A convolution's."""
    return (
        _numbers("strides", rank, 1), _numbers("padding", max(rank, 2), 0),  # of a line both sides
        _numbers("dilation", rank, 1), Attr("groups", 1, "int"), Attr("channels", None, "int?"),
        Attr("kernel_size", None, "sizes?"), Attr("data_layout", _LAYOUTS[rank], "str"),
        Attr("kernel_layout", _WEIGHTS[rank], "str"), Attr("out_layout", "", "str"),
        Attr("out_dtype", None, "dtype"),
    )  # fmt: skip


def conv_transpose(rank: int) -> tuple[Attr, ...]:
    """A transposed convolution's."""
    strides, _, dilation, groups, channels, size, layout, _, *out = conv(rank)
    return (
        channels, size, strides, _numbers("output_padding", rank, 0),
        _numbers("padding", rank, 0), dilation, groups, layout,
        Attr("kernel_layout", swap_io(_WEIGHTS[rank]), "str"), *out,
    )  # fmt: skip


def layouts(rank: int) -> tuple[Attr, Attr]:
    """Those of a pool."""
    return Attr("layout", _LAYOUTS[rank], "str"), Attr("out_layout", "", "str")


def max_pool(rank: int) -> tuple[Attr, ...]:
    """A pool's of maxima."""
    return (
        Attr("pool_size", REQUIRED, "sizes"), _numbers("strides", rank, 1),
        _numbers("dilation", rank, 1), _numbers("padding", rank, 0), *layouts(rank),
        Attr("ceil_mode", False, "bool"),
    )  # fmt: skip


def avg_pool(rank: int) -> tuple[Attr, ...]:
    """A pool's of means."""
    return (*max_pool(rank), Attr("count_include_pad", False, "bool"))


def adaptive_pool(rank: int) -> tuple[Attr, ...]:
    """A pool's that is given the size of its result."""
    return (Attr("output_size", (), "sizes?"), *layouts(rank))


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


def _facts(rank: int, signature: str, doc: str) -> dict[str, Any]:
    return {"window": rank, "signature": signature, "doc": doc}


def conv_builder(rank: int) -> dict[str, Any]:
    """A convolution's."""
    one, zero = ("1", "0") if rank == 1 else ((1,) * rank, (0,) * rank)
    signature = (
        f"data, weight, strides={one}, padding={zero}, dilation={one}, groups=1, channels=None,"
        f" kernel_size=None, data_layout='{_LAYOUTS[rank]}', kernel_layout='{_WEIGHTS[rank]}',"
        " out_layout='', out_dtype=''"
    )
    doc = (
        f"A convolution: {_DATA[rank].format('C')} and {_WEIGHT[rank].format('K', 'C/groups')} to"
        f" {_RESULT[rank].format('K')}, or other layouts.\n\n`padding` is {_PADDING[rank]};"
        " `channels` is K and `kernel_size` the window's, which only repeat the weight's shape;"
        " `out_layout` is by default `data_layout`, `out_dtype` that of `data`."
    )
    return _facts(rank, signature, doc)


def conv_transpose_builder(rank: int) -> dict[str, Any]:
    """A transposed convolution's."""
    one, zero = (1,) * rank, (0,) * rank
    signature = (
        f"data, weight, strides={one}, padding={zero}, dilation={one}, groups=1, channels=None,"
        f" kernel_size=None, data_layout='{_LAYOUTS[rank]}',"
        f" kernel_layout='{swap_io(_WEIGHTS[rank])}', out_layout='', output_padding={zero},"
        " out_dtype=''"
    )
    doc = (
        "A transposed convolution, the data gradient of a convolution with the same attributes.\n\n"
        f"{_DATA[rank].format('I')} and {_WEIGHT[rank].format('I', 'O/groups')} to"
        f" {_RESULT[rank].format('O')}; `padding` is {_PADDING[rank]}; `output_padding` adds to the"
        " result's sizes, at each axis' end."
    )
    return _facts(rank, signature, doc)


def backward_weight_builder(rank: int) -> dict[str, Any]:
    """A weight gradient's, whose layouts are in a convolution's fields."""
    one, zero, images = (1,) * rank, (0,) * rank, _LAYOUTS[rank]
    signature = (
        f"grad, data, strides={one}, padding={zero}, dilation={one}, groups=1, channels=None,"
        f" kernel_size=None, grad_layout: data_layout='{images}',"
        f" data_layout: kernel_layout='{images}', kernel_layout: out_layout='{_WEIGHTS[rank]}',"
        " out_dtype=''"
    )
    doc = (
        "The weight gradient of a convolution with the same attributes.\n\n"
        f"The gradient of the result {_RESULT[rank].format('K')} and the data"
        f" {_DATA[rank].format('C')} to {_WEIGHT[rank].format('K', 'C/groups')}.\nRelay keeps the"
        " three layouts in conv2d's fields: the call's `data_layout` is `grad_layout`, its\n"
        "`kernel_layout` is `data_layout`, its `out_layout` is `kernel_layout`."
    )
    return _facts(rank, signature, doc + ("  Relay has no such operator." if rank == 3 else ""))


def pool_builder(rank: int, average: bool = False) -> dict[str, Any]:
    """A pooling's, of maxima or of means."""
    one, zero = (1,) * rank, (0,) * rank
    signature = (
        f"data, pool_size={one}, strides={one}, dilation={one}, padding={zero},"
        f" layout='{_LAYOUTS[rank]}', out_layout='', ceil_mode=False"
    )
    if not average:
        return _facts(rank, signature, "The maximum of each window.")
    doc = "The mean of each window; `count_include_pad` counts the padding's zeros."
    return _facts(rank, f"{signature}, count_include_pad=False", doc)


def adaptive_pool_builder(rank: int, what: str) -> dict[str, Any]:
    """An adaptive pooling's, of "maxima" or "means"."""
    signature = f"data, output_size=None, layout='{_LAYOUTS[rank]}', out_layout=''"
    doc = f"The {what} of windows such that the result has this {_NAMES[rank]}, by default data's."
    facts = _facts(rank, signature, doc)
    return facts | {"window": 0} if rank == 2 else facts  # one number is one in Relay's text


def pool_grad_builder(average: bool = False) -> dict[str, Any]:
    """A pooling's gradient, whose dilation Relay's builder leaves empty."""
    signature = (
        "out_grad, data, pool_size=(1, 1), strides=(1, 1), padding=(0, 0), layout='NCHW',"
        " out_layout='', ceil_mode=False"
    ) + (", count_include_pad=False" if average else "")
    doc = f"The gradient of `{'avg' if average else 'max'}_pool2d` by its data."
    return {"absent": {"dilation": ()}, "signature": signature, "doc": doc}
