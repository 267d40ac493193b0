"""Gradients of the three convolutions, by each other.

A convolution is bilinear in data x and weight w.  With y = conv(x, w), and g the gradient of y:

    dx = transposed(g, w)    dw = wgrad(g, x)

The transposed convolution and the weight gradient are the same map, solved for another operand:

    y = transposed(x, w):  dx = conv(g, w)    dw = wgrad(x, g)
    w = wgrad(y, x):       dy = conv(x, g)    dx = transposed(y, g)

A weight has the same axes in all of them, O for y's channels and I for x's.  Relay calls the axes
of a transposed convolution's weight by its own data and result, so there O and I are swapped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...layouts import swap_io
from ...problem import transposed_size
from ..ast import Call, Expr, Op
from ..records import REGISTRY, attributes_of, lookup, show
from ..records.blocked_layouts import primal_axes
from ..records.conv import in_groups, multiplier
from ..records.table import Call as Site
from ..records.windows import ends, per_axis, rank_of
from . import one_dimension
from .common import Rule, call, refuse, reshape, transpose, type_of

_SAME = ("strides", "padding", "dilation", "groups")


def _name(orig: Call) -> str:
    assert isinstance(orig.op, Op)
    return orig.op.name


def _site(orig: Call) -> Site:
    types = tuple(type_of(arg) for arg in orig.args)
    return Site(_name(orig), ("data", "weight"), types, attributes_of(orig))


def _shared_attributes(a: dict[str, Any]) -> dict[str, Any]:
    return {name: a[name] for name in _SAME}


def _spatial(orig: Call, x: Expr, layout: str) -> list[int]:
    """Depth, height and width, as far as there are, which must be known."""
    shape = type_of(x).shape
    sizes = [shape[layout.index(axis)] for axis in "DHW" if axis in layout]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) != len(sizes):
        axes = "depth, height and width" if len(sizes) == 3 else "height and width"
        refuse(orig, f"needs a known {axes}, got {show(type_of(x))}")
    return known


def _window(orig: Call, weight: Expr, layout: str) -> list[int]:
    """The kernel's sizes."""
    shape = type_of(weight).shape
    sizes = [shape[layout.index(axis)] for axis in "DHW" if axis in layout]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) != len(sizes):
        refuse(orig, f"needs a known kernel, got {show(type_of(weight))}")
    return known


def _product(name: str, a: Expr, b: Expr, like: Expr, attrs: dict[str, Any]) -> Expr:
    """The convolution of two operands in `like`'s dtype.

    Operands of two dtypes meet in the gradient's, the first to be given.
    """
    wanted, dtype = type_of(like).dtype, type_of(a).dtype
    other = type_of(b).dtype
    if dtype == other == wanted:
        return call(name, a, b, **attrs, out_dtype=wanted)
    if dtype != other:
        b = call("cast", b, dtype=dtype)
    out = call(name, a, b, **attrs, out_dtype=dtype)
    return out if dtype == wanted else call("cast", out, dtype=wanted)


def _by_data(
    orig: Call, grad: Expr, weight: Expr, like: Expr, layouts: tuple[str, str, str]
) -> Expr:
    """transposed(grad, weight), as large as `like`; layouts: gradient's, weight's, result's."""
    a, (grad_layout, weight_layout, out_layout) = attributes_of(orig), layouts
    site, rank = _site(orig), rank_of(_name(orig))
    pads = ends(site, rank)
    strides, dilation = per_axis(site, "strides", rank), per_axis(site, "dilation", rank)
    sizes, window = _spatial(orig, grad, grad_layout), _window(orig, weight, weight_layout)
    wanted = _spatial(orig, like, out_layout)
    # What a stride leaves over at the end, which no window reached.
    extra = [
        want - transposed_size(size, pad, r, stride, dilate, 0)
        for want, size, pad, r, stride, dilate in zip(
            wanted,
            sizes,
            (pads[i] + pads[rank + i] for i in range(rank)),
            window,
            strides,
            dilation,
            strict=True,
        )
    ]
    attrs = _shared_attributes(a) | {
        "output_padding": extra,
        "data_layout": grad_layout,
        "kernel_layout": swap_io(weight_layout),
        "out_layout": "" if out_layout == grad_layout else out_layout,
    }
    return _product(f"nn.conv{rank}d_transpose", grad, weight, like, attrs)


def _forward(orig: Call, x: Expr, weight: Expr, like: Expr, layouts: tuple[str, str, str]) -> Expr:
    """conv(x, weight); layouts: x's, weight's, result's."""
    x_layout, weight_layout, out_layout = layouts
    channels = type_of(weight).shape[weight_layout.index("O")]
    attrs = _shared_attributes(attributes_of(orig)) | {
        "channels": channels if isinstance(channels, int) else None,
        "kernel_size": _window(orig, weight, weight_layout),
        "data_layout": x_layout,
        "kernel_layout": weight_layout,
        "out_layout": "" if out_layout == x_layout else out_layout,
    }
    return _product(f"nn.conv{rank_of(_name(orig))}d", x, weight, like, attrs)


def _by_weight(orig: Call, grad: Expr, x: Expr, like: Expr, layouts: tuple[str, str, str]) -> Expr:
    """wgrad(grad, x); layouts: gradient's, x's, result's."""
    grad_layout, x_layout, out_layout = layouts
    a, name = attributes_of(orig), f"nn.conv{rank_of(_name(orig))}d"
    attrs = _shared_attributes(a) | {
        "channels": a["channels"] if _name(orig) == name else None,
        "kernel_size": _window(orig, like, out_layout),
        # Relay's names for these three.
        "data_layout": grad_layout,
        "kernel_layout": x_layout,
        "out_layout": out_layout,
    }
    return _product(f"{name}_backward_weight", grad, x, like, attrs)


def _in_layout(x: Expr, src: str, dst: str) -> Expr:
    """In another layout; typed if `x` is."""
    if src == dst:
        return x
    return _typed(call("layout_transform", x, src_layout=src, dst_layout=dst))


def _typed(made: Call) -> Call:
    """A call of one operand, with its type if that has one."""
    if made.args[0].checked_type is None:
        return made
    return replace(
        made, checked_type=lookup(_name(made)).infer([type_of(made.args[0])], made.attrs)
    )


def _of_groups(orig: Call, grad: Expr) -> list[Expr]:
    """Of a depthwise convolution whose weight is (C, M, kh, kw): by that of (C·M, 1, kh, kw)."""
    (x, w), a = orig.args, attributes_of(orig)
    w_layout, layout = a["kernel_layout"], primal_axes(a["kernel_layout"])
    w = _in_layout(w, w_layout, layout)
    sizes = [size for size in type_of(w).shape if isinstance(size, int)]
    if len(sizes) < len(layout):
        refuse(orig, f"needs a known kernel, got {show(type_of(w))}")
    order, shape = in_groups(layout, sizes)
    whole = _typed(reshape(_typed(transpose(w, order)), shape))
    made = call(_name(orig), x, whole, **(a | {"kernel_layout": layout}))
    dx, dw = _conv(replace(made, checked_type=orig.checked_type), grad)
    apart = reshape(dw, [sizes[i] for i in order])
    back = [order.index(i) for i in range(len(order))]
    return [dx, _in_layout(transpose(apart, back), layout, w_layout)]


def _conv(orig: Call, grad: Expr) -> list[Expr]:
    (x, w), a = orig.args, attributes_of(orig)
    if multiplier(_site(orig)) is not None:
        return _of_groups(orig, grad)
    x_layout, w_layout = a["data_layout"], a["kernel_layout"]
    y_layout = a["out_layout"] or x_layout
    blocked = [n for n in (x_layout, w_layout, y_layout) if n != primal_axes(n)]
    if blocked:
        # Of the tensors without blocks, and back.
        x, w, grad = (
            _in_layout(value, layout, primal_axes(layout))
            for value, layout in ((x, x_layout), (w, w_layout), (grad, y_layout))
        )
        layouts = primal_axes(y_layout), primal_axes(w_layout), primal_axes(x_layout)
        dx = _by_data(orig, grad, w, x, layouts)
        dw = _by_weight(orig, grad, x, w, (layouts[0], layouts[2], layouts[1]))
        return [
            _in_layout(dx, primal_axes(x_layout), x_layout),
            _in_layout(dw, primal_axes(w_layout), w_layout),
        ]
    return [
        _by_data(orig, grad, w, x, (y_layout, w_layout, x_layout)),
        _by_weight(orig, grad, x, w, (y_layout, x_layout, w_layout)),
    ]


def _conv_transpose(orig: Call, grad: Expr) -> list[Expr]:
    (x, w), a = orig.args, attributes_of(orig)
    x_layout, w_layout = a["data_layout"], swap_io(a["kernel_layout"])
    y_layout = a["out_layout"] or x_layout
    return [
        _forward(orig, grad, w, x, (y_layout, w_layout, x_layout)),
        _by_weight(orig, x, grad, w, (x_layout, y_layout, w_layout)),
    ]


def _conv_backward_weight(orig: Call, grad: Expr) -> list[Expr]:
    (y, x), a = orig.args, attributes_of(orig)
    y_layout, x_layout, w_layout = a["data_layout"], a["kernel_layout"], a["out_layout"]
    return [
        _forward(orig, x, grad, y, (x_layout, w_layout, y_layout)),
        _by_data(orig, y, grad, x, (y_layout, w_layout, x_layout)),
    ]


RULES: dict[str, Rule] = {
    f"nn.conv{rank}d{which}": one_dimension.of_rank(rank, rule)
    for rank in (1, 2, 3)
    for which, rule in (
        ("", _conv), ("_transpose", _conv_transpose), ("_backward_weight", _conv_backward_weight)
    )
    if f"nn.conv{rank}d{which}" in REGISTRY
}  # fmt: skip
