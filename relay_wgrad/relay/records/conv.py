"""Convolutions of lines, images and volumes; a depth comes before the height everywhere.

`nn.conv2d_backward_weight(grad, data)` keeps its layouts in conv2d's fields: `data_layout` is the
gradient's, `kernel_layout` the data's, `out_layout` the result's.  Their defaults stay conv2d's,
with which no program is valid, so Relay's text always has the last two.

Two differences from Relay.  Where nn.conv2d_transpose has groups and no `channels`, Relay takes the
weight's O for the result's channels; here they are O times groups, which is what is computed.  And
the weight gradient's operands must fit each other, which Relay leaves to whatever runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge
from typing import Any

from tvm import relax

from ...layouts import ACTIVATIONS, KERNEL, KERNELS, is_permutation, swap_io, to_layout
from ...ops import size_rules
from ...ops.conv import conv2d, conv3d
from ...ops.conv_backward_weight import conv2d_backward_weight, conv3d_backward_weight
from ...ops.conv_transpose import conv2d_transpose
from ...problem import transposed_size
from ...rules import out_size
from ..types import ANY, AnyDim, Dim, TensorType, Type
from . import by_rank, one_dimension
from .blocked_layouts import (
    is_blocked,
    of_whole_axes,
    parse_layout,
    primal_axes,
    split_sizes,
    whole_sizes,
)
from .facts import ALWAYS, OUT_ELEMWISE_FUSABLE, Roles, conv_roles
from .relations import agree, divides, mapped, product
from .table import Call, Site, define, show, show_shape
from .windows import ends, per_axis, rank_of

R = relax.op
# How Relay's messages call the operators.
_SPOKEN = {"nn.conv2d_transpose": "Conv2DTransposed", "nn.conv3d_transpose": "Conv3DTransposed"}


def _letters(call: Call) -> tuple[str, str]:
    """The canonical layouts of images and of weights."""
    rank = rank_of(call.op)
    return ACTIVATIONS[rank], KERNELS[rank]


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
    if len(layout) > len(canonical):
        sizes = whole_sizes(call, index, "layout", layout)
        return tuple(sizes[axis] for axis in canonical)
    if len(ty.shape) != len(canonical):
        call.fail(
            f"{call.inputs[index]} with layout {layout} must have {len(canonical)} axes,"
            f" got {show(ty)}"
        )
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


def _kernel(call: Call, weight: Sequence[Dim]) -> Sequence[Dim]:
    """The kernel's size, which `kernel_size` may repeat."""
    given, rank = call.attrs["kernel_size"], rank_of(call.op)
    if given is None:
        return weight[2:]
    sizes = per_axis(call, "kernel_size", rank)
    if not all(map(agree, sizes, weight[2:])):
        spoken = _SPOKEN.get(call.op, f"Conv{rank}D")
        call.fail(
            f"{spoken}: shape of weight is inconsistent with kernel_size,"
            f" kernel_size={list(given)} wshape={show_shape(weight)}"
        )
    return sizes


def _spatial(
    call: Call, sizes: Sequence[Dim], kernel: Sequence[Dim], extra: Sequence[int] | None = None
) -> list[Dim]:
    """The result's height and width; of a transposed convolution where `extra` is given."""
    rank = rank_of(call.op)
    pads, strides = ends(call, rank), per_axis(call, "strides", rank)
    dilation = per_axis(call, "dilation", rank)
    out: list[Dim] = []
    for i, pad in enumerate(pads[j] + pads[rank + j] for j in range(rank)):
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
    return out


def _dtype(call: Call) -> str:
    dtype: str | None = call.attrs["out_dtype"]
    if dtype is None:
        call.same_dtype(0, 1)
    return dtype or call.tensor(0).dtype


def multiplier(call: Call) -> Dim | None:
    """Filters of each channel, where a depthwise convolution's weight is (C, M, kh, kw).

    So Relay's front ends of TensorFlow, TFLite and Keras wrote it, with `channels` = C·M: O counts
    the data's channels there, and I their filters.  None for (K, C/groups, kh, kw), which with one
    filter each is the same.
    """
    (image, kernel), a = _letters(call), call.attrs
    groups, channels = _groups(call), a["channels"]
    c = _canonical(call, 0, _layout(call, "input", "data_layout", image), image)[1]
    weight = _canonical(call, 1, _layout(call, "kernel", "kernel_layout", kernel), kernel)
    if groups == 1 or channels in (None, groups) or not (agree(c, groups) and groups == weight[0]):
        return None
    return weight[1]


def in_groups(layout: str, shape: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """How a weight (C, M, kh, kw) becomes one of (C·M, 1, kh, kw) in the same layout: an order of
    its axes, in which M comes after C, and then a shape."""
    order = [axis for axis in layout if axis != "I"]
    order.insert(order.index("O") + 1, "I")
    sizes = dict(zip(layout, shape, strict=True))
    sizes |= {"O": product((sizes["O"], sizes["I"])), "I": 1}
    return [layout.index(axis) for axis in order], [sizes[axis] for axis in layout]


def _grouped(s: Site, weight: Any, layout: str) -> Any:
    """The weight as a convolution in groups has it."""
    if multiplier(s) is None:
        return weight
    order, shape = in_groups(layout, _plain_sizes(s, layout))
    if order != sorted(order):
        weight = s.emit(R.permute_dims(weight, order))
    return s.emit(s.reshape(weight, shape))


def _plain_sizes(s: Site, layout: str) -> list[Dim]:
    """Of the weight without blocks."""
    sizes = _canonical(s, 1, str(s.attrs["kernel_layout"]), _letters(s)[1])
    return list(to_layout(sizes, _letters(s)[1], layout))


def _conv_type(call: Call) -> Type:
    image, kernel = _letters(call)
    data_layout = _layout(call, "input", "data_layout", image)
    kernel_layout = _layout(call, "kernel", "kernel_layout", kernel)
    out_layout = _layout(call, "output", "out_layout", image)
    n, c, *sizes = _canonical(call, 0, data_layout, image)
    weight = _canonical(call, 1, kernel_layout, kernel)
    groups, channels = _groups(call), call.attrs["channels"]
    if (filters := multiplier(call)) is not None:
        whole = mapped(filters, lambda m: groups * m)
        if not agree(channels, whole):
            call.fail(
                f"{filters} filters for each of {groups} channels make {whole}, got"
                f" channels={channels} and the depthwise weight {show_shape(weight)}"
            )
        weight = (whole, 1, *weight[2:])
    if channels is not None and not agree(channels, weight[0]):
        call.fail(
            f"conv{rank_of(call.op)}D: the first dimensions of the weight tensor"
            f" {show_shape(weight)} does not match the number of channels ({channels})."
        )
    _divided(call, "the output channels", weight[0], groups)
    share = _divided(call, "the input channels", c, groups)
    if not agree(share, weight[1]):
        call.fail(
            f"conv{rank_of(call.op)}d: requires that `{share}`, the input channels ({c}) divided by"
            f" groups ({groups}), must match the input channels of the weight `{weight[1]}`,"
            f" where the weight shape is {show_shape(weight)}."
        )
    made = _spatial(call, sizes, _kernel(call, weight))
    out = (n, weight[0] if channels is None else channels, *made)
    axes = parse_layout(call, "out_layout", out_layout)
    sizes_of = dict(zip(image, out, strict=True))
    return TensorType(split_sizes(call, axes, sizes_of), _dtype(call))


def _conv(s: Site) -> Any:
    a, made = s.attrs, conv3d if rank_of(s.op) == 3 else conv2d
    out_layout = str(a["out_layout"] or a["data_layout"])
    layouts = [(name, str(a[name])) for name in ("data_layout", "kernel_layout")]

    def build(data: Any, weight: Any) -> Any:
        return made(
            data, _grouped(s, weight, primal_axes(a["kernel_layout"])),
            a["strides"], a["padding"], a["dilation"], a["groups"],
            primal_axes(a["data_layout"]), primal_axes(a["kernel_layout"]),
            primal_axes(out_layout) if a["out_layout"] else None, a["out_dtype"],
        )  # fmt: skip

    return of_whole_axes(s, [*layouts, ("out_layout", out_layout)], build)


def _output_padding(call: Call) -> tuple[int, ...]:
    """Relay's relation takes any; what is computed is less than the strides."""
    values, rank = call.attrs["output_padding"], rank_of(call.op)
    if len(values) not in (1, rank) or min(values) < 0:
        call.fail(f"output_padding must be 1 or {rank} integers of at least 0, got {list(values)}")
    return tuple(values) * (rank // len(values))


def _conv_transpose_type(call: Call) -> Type:
    image, kernel = _letters(call)
    kernel, spoken = swap_io(kernel), _SPOKEN.get(call.op, "Conv2DTransposed")
    data_layout = _layout(call, "input", "data_layout", image)
    kernel_layout = _layout(call, "kernel", "kernel_layout", kernel)
    out_layout = _layout(call, "output", "out_layout", image)
    n, c, *sizes = _canonical(call, 0, data_layout, image)
    weight = _canonical(call, 1, kernel_layout, kernel)
    groups, channels = _groups(call), call.attrs["channels"]
    if not agree(c, weight[0]):
        call.fail(
            f"{spoken}: shape of weight is inconsistent with in_channels."
            f" data.shape= {show_shape((n, c, *sizes))} groups= {groups}"
            f" weight.shape= {show_shape(weight)}"
        )
    _divided(call, "the input channels", weight[0], groups)
    if channels is not None:
        share = _divided(call, "channels", channels, groups)
        if not agree(share, weight[1]):
            call.fail(
                f"{spoken}: shape of weight is inconsistent with out_channels, "
                " out_channels // groups != weight.shape[1] "
                f" out_channels={channels} groups={groups} weight.shape={show_shape(weight)}"
            )
    else:
        channels = mapped(weight[1], lambda k: k * groups)
    made = _spatial(call, sizes, _kernel(call, weight), _output_padding(call))
    return TensorType(to_layout((n, channels, *made), image, out_layout), _dtype(call))


def _conv_transpose(s: Site) -> Any:
    a = s.attrs
    extra, strides = _output_padding(s), per_axis(s, "strides", rank_of(s.op))
    if any(map(ge, extra, strides)):
        s.fail(
            f"output_padding must be smaller than strides, got {list(extra)} and {list(strides)}"
        )
    return (R.nn.conv3d_transpose if rank_of(s.op) == 3 else conv2d_transpose)(
        s.args[0], s.args[1],
        a["strides"], a["padding"], a["output_padding"], a["dilation"], a["groups"],
        a["data_layout"], a["kernel_layout"], a["out_layout"] or None, a["out_dtype"],
    )  # fmt: skip


def _backward_weight_type(call: Call) -> Type:
    image, kernel = _letters(call)
    grad_layout = _layout(call, "gradient", "data_layout", image)
    data_layout = _layout(call, "data", "kernel_layout", image)
    out_layout = _layout(call, "weight", "out_layout", kernel)
    if call.attrs["kernel_size"] is None:
        call.fail("kernel_size attribute needs to be specified")
    gn, k, *given = _canonical(call, 0, grad_layout, image)
    n, c, *sizes = _canonical(call, 1, data_layout, image)
    groups, channels = _groups(call), call.attrs["channels"]
    if not agree(gn, n):
        call.fail(f"grad and data must have the same batch, got {gn} and {n}")
    if channels is not None and not agree(channels, k):
        call.fail(f"channels must be the gradient's channels, got channels={channels} and {k}")
    _divided(call, "the gradient's channels", k, groups)
    share = _divided(call, "the data's channels", c, groups)
    window = per_axis(call, "kernel_size", rank_of(call.op))
    made = _spatial(call, sizes, window)
    if not all(map(agree, made, given)):
        wanted, got = (" x ".join(map(str, some)) for some in (made, given))
        call.fail(
            f"grad must have the size of the convolution's output, {wanted},"
            f" got {got}: {show(call.tensor(0))}, {show(call.tensor(1))}"
        )
    return TensorType(to_layout((k, share, *window), kernel, out_layout), _dtype(call))


def _backward_weight(s: Site) -> Any:
    a = s.attrs
    made = conv3d_backward_weight if rank_of(s.op) == 3 else conv2d_backward_weight
    return made(
        s.args[0], s.args[1],
        a["kernel_size"], a["strides"], a["padding"], a["dilation"], a["groups"],
        a["data_layout"], a["kernel_layout"], a["out_layout"], a["out_dtype"],
    )  # fmt: skip


def _roles(rank: int, kernel: str) -> Roles | None:
    """Of images; of a weight gradient those of the gradient, the data and the result."""
    return conv_roles(kernel) if rank == 2 else None


_FACTS: dict[str, Any] = {"kind": OUT_ELEMWISE_FUSABLE, "level": 2}
for _rank in (1, 2, 3):
    _checked = "relay" if _rank == 2 else "torch"
    for _which, _weight, _type, _build, _sizes, _attrs, _facts in (
        ("", KERNEL, _conv_type, _conv, size_rules.line, by_rank.conv, by_rank.conv_builder),
        ("_transpose", swap_io(KERNEL), _conv_transpose_type, _conv_transpose,
         size_rules.transposed_line, by_rank.conv_transpose, by_rank.conv_transpose_builder),
    ):  # fmt: skip
        define(f"nn.conv{_rank}d{_which}", "data weight",
               *one_dimension.of_rank(_rank, _type, _build, _sizes), _checked, *_attrs(_rank),
               **_FACTS | {"precision": ALWAYS, "roles": _roles(_rank, _weight)} | _facts(_rank),
        )  # fmt: skip
    if _rank > 1:  # that of volumes is not Relay's, which has no gradient of them
        define(f"nn.conv{_rank}d_backward_weight", "grad data", _backward_weight_type,
               _backward_weight, _checked, *by_rank.conv(_rank), roles=_roles(_rank, KERNEL),
               **_FACTS, **by_rank.backward_weight_builder(_rank))  # fmt: skip
