"""Convolutions.

`nn.conv2d_backward_weight(grad, data)` keeps its layouts in conv2d's fields: `data_layout` is the
gradient's, `kernel_layout` the data's, `out_layout` the result's.  Their defaults stay conv2d's,
with which no program is valid, so Relay's text always has the last two.

Two differences from Relay.  Where nn.conv2d_transpose has groups and no `channels`, Relay takes the
weight's O for the result's channels; here they are O times groups, which is what is computed.  And
the weight gradient's operands must fit each other, which Relay leaves to whatever runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...layouts import ACTIVATION, KERNEL, is_permutation, to_layout
from ...ops.conv2d import conv2d
from ...ops.conv2d_backward_weight import conv2d_backward_weight
from ...ops.conv2d_transpose import KERNEL_TRANSPOSED, conv2d_transpose
from ...problem import out_size, transposed_size
from ..types import ANY, AnyDim, Dim, TensorType, Type
from .blocks import is_blocked, of_whole_axes, parse_layout, plain, split_sizes, whole_sizes
from .relations import agree, divides, mapped
from .table import Attr, Call, Site, define, show, show_shape
from .windows import padding, pair

# How Relay's messages call the operators.
_SPOKEN = {"nn.conv2d_transpose": "Conv2DTransposed"}


def _layout(call: Call, kind: str, field: str, canonical: str) -> str:
    layout = str(call.attrs[field])
    if field == "out_layout" and not layout:
        layout = str(call.attrs["data_layout"])
    blocked = call.op == "nn.conv2d" and is_blocked(layout, canonical, whole="HW")
    if not (blocked or is_permutation(layout, canonical)):
        spoken = _SPOKEN.get(call.op, call.op.removeprefix("nn."))
        call.fail(
            f"{spoken} only support {kind} layouts that are convertible from {canonical}."
            f" The provided layout is: {field}={layout!r}"
        )
    return layout


def _canonical(call: Call, index: int, layout: str, canonical: str) -> tuple[Dim, ...]:
    ty = call.tensor(index)
    if len(layout) > 4:
        sizes = whole_sizes(call, index, "layout", layout)
        return tuple(sizes[axis] for axis in canonical)
    if len(ty.shape) != 4:
        call.fail(f"{call.inputs[index]} with layout {layout} must have 4 axes, got {show(ty)}")
    return to_layout(ty.shape, layout, canonical)


def _groups(call: Call) -> int:
    groups = int(call.attrs["groups"])
    if groups < 1:
        call.fail(f"groups must be at least 1, got {groups}")
    return groups


def _divided(call: Call, name: str, size: Dim, groups: int) -> Dim:
    if not divides(groups, size):
        call.fail(f"groups must divide {name}, got {name}={size}, groups={groups}")
    return mapped(size, lambda n: n // groups)


def _kernel(call: Call, weight: Sequence[Dim]) -> tuple[Dim, Dim]:
    """The kernel's size, which `kernel_size` may repeat."""
    given = call.attrs["kernel_size"]
    if given is None:
        return weight[2], weight[3]
    r, s = pair(call, "kernel_size")
    if not (agree(r, weight[2]) and agree(s, weight[3])):
        call.fail(
            f"{_SPOKEN.get(call.op, 'Conv2D')}: shape of weight is inconsistent with kernel_size,"
            f" kernel_size={list(given)} wshape={show_shape(weight)}"
        )
    return r, s


def _spatial(
    call: Call, sizes: Sequence[Dim], kernel: Sequence[Dim], extra: Sequence[int] | None = None
) -> tuple[Dim, Dim]:
    """The result's height and width; of a transposed convolution where `extra` is given."""
    top, left, bottom, right = padding(call)
    strides, dilation = pair(call, "strides"), pair(call, "dilation")
    out: list[Dim] = []
    for i, pad in enumerate((top + bottom, left + right)):
        size, window = sizes[i], kernel[i]
        if isinstance(size, AnyDim) or isinstance(window, AnyDim):
            out.append(ANY)
            continue
        made: Any
        if extra is None:
            made = out_size(size, pad, window, strides[i], dilation[i])
        else:
            made = transposed_size(size, pad, window, strides[i], dilation[i], extra[i])
        if isinstance(made, int) and made < 1:
            call.fail(
                f"the result's size must be positive, got {made} from size {size}, kernel"
                f" {window}, padding {pad} in all, stride {strides[i]}, dilation {dilation[i]}"
            )
        out.append(made)
    return out[0], out[1]


def _dtype(call: Call) -> str:
    dtype: str | None = call.attrs["out_dtype"]
    if dtype is None:
        call.same_dtype(0, 1)
    return dtype or call.tensor(0).dtype


def _conv2d_type(call: Call) -> Type:
    data_layout = _layout(call, "input", "data_layout", ACTIVATION)
    kernel_layout = _layout(call, "kernel", "kernel_layout", KERNEL)
    out_layout = _layout(call, "output", "out_layout", ACTIVATION)
    n, c, h, w = _canonical(call, 0, data_layout, ACTIVATION)
    weight = _canonical(call, 1, kernel_layout, KERNEL)
    groups, channels = _groups(call), call.attrs["channels"]
    if channels is not None and not agree(channels, weight[0]):
        call.fail(
            f"conv2D: the first dimensions of the weight tensor {show_shape(weight)}"
            f" does not match the number of channels ({channels})."
        )
    _divided(call, "the output channels", weight[0], groups)
    share = _divided(call, "the input channels", c, groups)
    if not agree(share, weight[1]):
        call.fail(
            f"conv2d: requires that `{share}`, the input channels ({c}) divided by groups"
            f" ({groups}), must match the input channels of the weight `{weight[1]}`,"
            f" where the weight shape is {show_shape(weight)}."
        )
    p, q = _spatial(call, (h, w), _kernel(call, weight))
    out = (n, weight[0] if channels is None else channels, p, q)
    axes = parse_layout(call, "out_layout", out_layout)
    sizes = dict(zip(ACTIVATION, out, strict=True))
    return TensorType(split_sizes(call, axes, sizes), _dtype(call))


def _conv2d(s: Site) -> Any:
    a = s.attrs
    out_layout = str(a["out_layout"] or a["data_layout"])
    layouts = [(name, str(a[name])) for name in ("data_layout", "kernel_layout")]

    def build(data: Any, weight: Any) -> Any:
        return conv2d(
            data, weight, a["strides"], a["padding"], a["dilation"], a["groups"],
            plain(a["data_layout"]), plain(a["kernel_layout"]),
            plain(out_layout) if a["out_layout"] else None, a["out_dtype"],
        )  # fmt: skip

    return of_whole_axes(s, [*layouts, ("out_layout", out_layout)], build)


def _output_padding(call: Call) -> tuple[int, int]:
    values = call.attrs["output_padding"]
    strides = pair(call, "strides")
    if len(values) not in (1, 2) or min(values) < 0:
        call.fail(f"output_padding must be 1 or 2 integers of at least 0, got {list(values)}")
    if values[0] >= strides[0] or values[-1] >= strides[1]:
        call.fail(
            f"output_padding must be smaller than strides, got {list(values)} and {list(strides)}"
        )
    return values[0], values[-1]


def _conv2d_transpose_type(call: Call) -> Type:
    data_layout = _layout(call, "input", "data_layout", ACTIVATION)
    kernel_layout = _layout(call, "kernel", "kernel_layout", KERNEL_TRANSPOSED)
    out_layout = _layout(call, "output", "out_layout", ACTIVATION)
    n, c, h, w = _canonical(call, 0, data_layout, ACTIVATION)
    weight = _canonical(call, 1, kernel_layout, KERNEL_TRANSPOSED)
    groups, channels = _groups(call), call.attrs["channels"]
    if not agree(c, weight[0]):
        call.fail(
            "Conv2DTransposed: shape of weight is inconsistent with in_channels."
            f" data.shape= {show_shape((n, c, h, w))} groups= {groups}"
            f" weight.shape= {show_shape(weight)}"
        )
    _divided(call, "the input channels", weight[0], groups)
    if channels is not None:
        share = _divided(call, "channels", channels, groups)
        if not agree(share, weight[1]):
            call.fail(
                "Conv2DTransposed: shape of weight is inconsistent with out_channels, "
                " out_channels // groups != weight.shape[1] "
                f" out_channels={channels} groups={groups} weight.shape={show_shape(weight)}"
            )
    else:
        channels = mapped(weight[1], lambda k: k * groups)
    p, q = _spatial(call, (h, w), _kernel(call, weight), _output_padding(call))
    return TensorType(to_layout((n, channels, p, q), ACTIVATION, out_layout), _dtype(call))


def _conv2d_transpose(s: Site) -> Any:
    a = s.attrs
    return conv2d_transpose(
        s.args[0], s.args[1],
        a["strides"], a["padding"], a["output_padding"], a["dilation"], a["groups"],
        a["data_layout"], a["kernel_layout"], a["out_layout"] or None, a["out_dtype"],
    )  # fmt: skip


def _backward_weight_type(call: Call) -> Type:
    grad_layout = _layout(call, "gradient", "data_layout", ACTIVATION)
    data_layout = _layout(call, "data", "kernel_layout", ACTIVATION)
    out_layout = _layout(call, "weight", "out_layout", KERNEL)
    if call.attrs["kernel_size"] is None:
        call.fail("kernel_size attribute needs to be specified")
    gn, k, p, q = _canonical(call, 0, grad_layout, ACTIVATION)
    n, c, h, w = _canonical(call, 1, data_layout, ACTIVATION)
    groups, channels = _groups(call), call.attrs["channels"]
    if not agree(gn, n):
        call.fail(f"grad and data must have the same batch, got {gn} and {n}")
    if channels is not None and not agree(channels, k):
        call.fail(f"channels must be the gradient's channels, got channels={channels} and {k}")
    _divided(call, "the gradient's channels", k, groups)
    share = _divided(call, "the data's channels", c, groups)
    r, s = pair(call, "kernel_size")
    made = _spatial(call, (h, w), (r, s))
    if not (agree(made[0], p) and agree(made[1], q)):
        call.fail(
            f"grad must have the size of the convolution's output, {made[0]} x {made[1]},"
            f" got {p} x {q}: {show(call.tensor(0))}, {show(call.tensor(1))}"
        )
    return TensorType(to_layout((k, share, r, s), KERNEL, out_layout), _dtype(call))


def _backward_weight(s: Site) -> Any:
    a = s.attrs
    return conv2d_backward_weight(
        s.args[0], s.args[1],
        a["kernel_size"], a["strides"], a["padding"], a["dilation"], a["groups"],
        a["data_layout"], a["kernel_layout"], a["out_layout"], a["out_dtype"],
    )  # fmt: skip


STRIDES, PADDING = Attr("strides", (1, 1), "sizes"), Attr("padding", (0, 0), "sizes")
DILATION, GROUPS = Attr("dilation", (1, 1), "sizes"), Attr("groups", 1, "int")
CHANNELS, KERNEL_SIZE = Attr("channels", None, "int?"), Attr("kernel_size", None, "sizes?")
LAYOUT = Attr("data_layout", ACTIVATION, "str")
OUT = (Attr("out_layout", "", "str"), Attr("out_dtype", None, "dtype"))
CONV2D = (
    STRIDES, PADDING, DILATION, GROUPS, CHANNELS, KERNEL_SIZE,
    LAYOUT, Attr("kernel_layout", KERNEL, "str"), *OUT,
)  # fmt: skip

define("nn.conv2d", "data weight", _conv2d_type, _conv2d, "relay", *CONV2D)
define("nn.conv2d_transpose", "data weight", _conv2d_transpose_type, _conv2d_transpose, "relay",
       CHANNELS, KERNEL_SIZE, STRIDES, Attr("output_padding", (0, 0), "sizes"), PADDING, DILATION,
       GROUPS, LAYOUT, Attr("kernel_layout", KERNEL_TRANSPOSED, "str"), *OUT)  # fmt: skip
define("nn.conv2d_backward_weight", "grad data", _backward_weight_type, _backward_weight, "relay",
       *CONV2D)  # fmt: skip
