"""How operators follow the layout of their operands: a rule by name.

A rule gives the call in a layout that needs few changes, or None where it must have the old one;
an operator without a rule has the old one too.  Rules are asked only where an operand is in a new
layout, but for those in `MAKERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..ast import Call, Constant, Expr, MetaAttrs, Op, Tuple
from ..make import call
from ..records import REGISTRY, lookup
from ..types import Dim, TensorType
from .site import Site, original, with_args
from .values import Order, State, Value, arranged, has_known_sizes, old_order, without

Rule = Callable[[Site], "State | None"]

# ---- element by element --------------------------------------------------------------------------


def _first(site: Site) -> State:
    """One tensor to one of its shape; other operands lend a scalar or a dtype."""
    data = site.value()
    node = site.changed_call([data.get(data.order), *_any_layout(site, 1)])
    return site.result(node, data.order, data.axes)


def _any_layout(site: Site, start: int) -> list[Expr]:
    values = [site.value(i) for i in range(start, len(site.args))]
    return [value.get(value.native) for value in values]


def _filled_like(site: Site) -> State:
    """Zeros like a tensor are zeros in every layout."""
    data = site.value()
    assert isinstance(site.type, TensorType)

    def make(order: Order) -> Expr:
        if order in data.forms or not has_known_sizes(data) or order == data.order:
            return site.changed_call([data.get(order), *_any_layout(site, 1)])
        return _filled(_FILLED_LIKE[site.name], data.sizes(order), site)

    return Value(site.type, data.order, {}, data.axes, make, free=True)


_FILLED_LIKE = {"zeros_like": "zeros", "ones_like": "ones", "full_like": "full"}


def _filled_new(site: Site) -> State | None:
    """So are zeros of a shape."""
    assert isinstance(site.type, TensorType)
    order = old_order(len(site.type.shape))
    old = with_args(site.call, [original(arg) for arg in site.args])
    out = Value(site.type, order, {order: old})
    if has_known_sizes(out):
        out.make = lambda order: _filled(site.name, out.sizes(order), site)
        out.free = True
    return out


def _filled(name: str, shape: Sequence[Dim], site: Site) -> Expr:
    assert isinstance(site.type, TensorType)
    fill = [original(site.args[-1])] if name == "full" else []
    return call(name, *fill, shape=shape, dtype=site.type.dtype)


def _broadcast(site: Site) -> State:
    assert isinstance(site.type, TensorType)
    values = [site.value(i) for i in range(len(site.args))]
    order, axes = site.chosen(values, len(site.type.shape))
    return site.result(site.changed_call([v.operand(order, axes) for v in values]), order, axes)


def _broadcast_to(site: Site) -> State | None:
    """To a shape that is an attribute."""
    assert isinstance(site.type, TensorType)
    data, ndim = site.value(), len(site.type.shape)
    order, axes = site.chosen([data], ndim)
    shape = arranged(site.type.shape, order)
    return site.result(
        site.changed_call([data.operand(order, axes)], shape=tuple(shape)), order, axes
    )


def _collapse_sum_like(site: Site) -> State:
    """The sums of what was broadcast; of fewer axes, they are counted from the last."""
    data, like = site.value(0), site.value(1)
    order, axes = site.chosen([data, like], data.ndim)
    if order == data.old:
        node = site.changed_call([data.get(order), like.get(like.old)])
        return site.result(node, like.old, like.axes)
    small = like.get(order, axes, reshape=True)
    return site.result(site.changed_call([data.get(order, axes), small]), order, axes)


def _collapse_sum_to(site: Site) -> State | None:
    data, shape = site.value(0), site.attrs["shape"]
    meta = lookup(site.name).meta
    if shape is None or not isinstance(site.call.args[1], Constant) or meta is None:
        return None
    assert isinstance(site.type, TensorType)
    order = data.order
    sizes = Value(site.type, order, {}).sizes(order)
    attrs = MetaAttrs(meta, {"shape": tuple(sizes), "dtype": site.call.attrs["dtype"]})
    if tuple(sizes) == tuple(shape):
        attrs = site.call.attrs
    dims = site.call.args[1]
    if dims.data.tolist() != sizes:
        dims = Constant(np.array(sizes, dims.data.dtype))
    node = Call(Op(site.name), (data.get(order), dims), attrs, span=site.call.span)
    return site.result(node, order, data.axes)


# ---- an axis, or a list of them ------------------------------------------------------------------


def _axis(site: Site) -> State:
    """`axis` names one axis; other operands are vectors along it."""
    data = site.value()
    args = [data.get(data.order), *(original(arg) for arg in site.args[1:])]
    return site.result(_with_axis(site, args, data.order), data.order, data.axes)


def _with_axis(site: Site, args: list[Expr], order: Order) -> Call:
    return site.changed_call(args, axis=site.place(site.attrs["axis"], order))


def _instance_norm(site: Site) -> State | None:
    """Normalizes over all axes but the first and one more, so the first must stay."""
    return _axis(site) if site.value().order[0] == 0 else None


def _batch_norm(site: Site) -> State:
    data = site.value()
    order = data.order
    args = [data.get(order), *(original(arg) for arg in site.args[1:])]
    vector: tuple[Order, str | None] = ((0,), None)
    return site.results(_with_axis(site, args, order), [(order, data.axes), vector, vector])


def _dropout(site: Site) -> State:
    data = site.value()
    return site.results(site.changed_call([data.get(data.order)]), [(data.order, data.axes)] * 2)


def _axes(site: Site) -> State | None:
    """`axis` is a list, each meaning the same in any order of the others."""
    data, axes = site.value(), site.attrs["axis"]
    if axes is None:
        return None
    places = tuple(site.place(axis, data.order) for axis in axes)
    out = site.changed_call([data.get(data.order)], axis=places)
    return site.result(out, data.order, data.axes)


def _reduced(site: Site, args: list[Expr], order: Order, axes: str | None) -> State:
    """A reduction: its axes, and what is left of the order."""
    given = site.attrs["axis"]
    node = site.changed_call(args, axis=given and tuple(site.place(a, order) for a in given))
    if site.attrs["keepdims"]:
        return site.result(node, order, axes)
    named = {axis % len(order) for axis in given or range(len(order))}
    gone = [a for a in order if (a in named) != (bool(given) and site.attrs["exclude"])]
    names = axes and "".join(axes[i] for i in range(len(order)) if i not in gone)
    return site.result(node, without(order, gone), names)


def _reduce(site: Site) -> State:
    data = site.value()
    return _reduced(site, [data.get(data.order)], data.order, data.axes)


def _arg_reduce(site: Site) -> State | None:
    """The index over several axes depends on their order, which must stay."""
    axes, order = site.attrs["axis"], site.value().order
    named = {axis % len(order) for axis in axes or order}
    over = [a for a in order if (a in named) != bool(axes and site.attrs["exclude"])]
    return _reduce(site) if over == sorted(over) else None


def _variance(site: Site) -> State:
    data, mean = site.value(0), site.value(1)
    order, axes = site.chosen([data, mean], data.ndim)
    args = [data.get(order, axes), mean.get(order, axes, reshape=True)]
    return _reduced(site, args, order, axes)


def _concatenate(site: Site) -> State | None:
    parts = site.tensors()
    if not parts:
        return None
    order, axes = site.chosen(parts, parts[0].ndim)
    joined = Tuple(tuple(part.get(order, axes) for part in parts))
    return site.result(_with_axis(site, [joined], order), order, axes)


def _split(site: Site) -> State:
    data = site.value()
    node = _with_axis(site, [data.get(data.order)], data.order)
    return site.results(node, [(data.order, data.axes)] * _count(site))


def _count(site: Site) -> int:
    parts = site.attrs["indices_or_sections"]
    return parts if isinstance(parts, int) else len(parts) + 1


def _topk(site: Site) -> State:
    """The largest along one axis, their indices there, or both."""
    data = site.value()
    node = _with_axis(site, [data.get(data.order)], data.order)
    if isinstance(site.type, TensorType):
        return site.result(node, data.order, data.axes)
    return site.results(node, [(data.order, data.axes)] * 2)


# ---- axes that come, go and move -----------------------------------------------------------------


def _expand_dims(site: Site) -> State:
    """The new axes come first, wherever the old program has them."""
    data, count = site.value(), site.attrs["num_newaxis"]
    ndim = data.ndim + count
    at = site.attrs["axis"] % (data.ndim + 1)
    order = (
        *range(at, at + count),
        *(axis if axis < at else axis + count for axis in data.order),
    )
    assert len(order) == ndim
    return site.result(site.changed_call([data.get(data.order)], axis=0), order, None)


def _squeeze(site: Site) -> State | None:
    data, given = site.value(), site.attrs["axis"]
    if given is None and not has_known_sizes(data):
        return None
    ones = [i for i, size in enumerate(data.type.shape) if size == 1]
    gone = ones if given is None else [axis % data.ndim for axis in given]
    places = given and tuple(site.place(axis, data.order) for axis in given)
    if given is None and data.order != data.old:
        places = tuple(sorted(data.order.index(axis) for axis in ones))
    node = site.changed_call([data.get(data.order)], axis=places)
    left = [i for i in range(data.ndim) if i not in gone]
    names = data.axes and "".join(data.axes[i] for i in left)
    return site.result(node, without(data.order, gone), names)


def _transposed(site: Site, axes: Order, names: str | None, make: Callable[[Order], Expr]) -> State:
    """A transposition by `axes`: in one order it is its operand, in others `make` gives it."""
    data = site.value()
    src = data.order
    assert isinstance(site.type, TensorType)
    same = tuple(axes.index(axis) for axis in src)
    old = old_order(len(axes))
    native = old if src == old else same
    # Where nothing moves the old program's node stays.
    forms = {} if same == old == src else {same: data.get(src)}
    return Value(site.type, native, forms, names, make)


def _transpose(site: Site) -> State:
    data, given = site.value(), site.attrs["axes"]
    ndim = data.ndim
    axes = old_order(ndim)[::-1] if given is None else tuple(axis % ndim for axis in given)
    src = data.order

    def make(order: Order) -> Expr:
        moved = tuple(src.index(axes[axis]) for axis in order)
        spelled = given if moved == axes and src == data.old else moved
        return site.changed_call([data.get(src)], axes=spelled)

    names = data.axes and "".join(arranged(data.axes, axes))
    return _transposed(site, axes, names, make)


def _layout_transform(site: Site) -> State | None:
    """One without blocks is a transposition."""
    data, src, dst = site.value(), site.attrs["src_layout"], site.attrs["dst_layout"]
    if not src.isupper() or len(src) != data.ndim or set(src) != set(dst) or len(dst) != len(src):
        return None
    order = data.order

    def make(wanted: Order) -> Expr:
        have, want = "".join(arranged(src, order)), "".join(arranged(dst, wanted))
        return site.changed_call([data.get(order)], src_layout=have, dst_layout=want)

    return _transposed(site, tuple(src.index(letter) for letter in dst), dst, make)


# ---- windows -------------------------------------------------------------------------------------


def _window(site: Site) -> State:
    """`layout` says where height and width are."""
    values = [site.value(i) for i in range(len(site.args))]
    order, _ = site.chosen(values, values[0].ndim)
    layout = site.attrs["layout"]
    new = "".join(arranged(layout, order))
    changes = (
        {"layout": new, "out_layout": new} if site.attrs.get("out_layout") else {"layout": new}
    )
    return site.result(
        site.changed_call([v.get(order, layout) for v in values], **changes), order, layout
    )


def _resized(site: Site) -> State | None:
    """It has two layouts."""
    data = site.value()
    layout = "".join(arranged(site.attrs["layout"], data.order))
    return _window(site) if layout in ("NCHW", "NHWC") else None


# ---- slices, and what has a number for each axis -------------------------------------------------


def _strided_slice(site: Site) -> State | None:
    data, a = site.value(), site.attrs
    count = len(a["begin"])
    strides = tuple(a["strides"]) + (1,) * (count - len(a["strides"]))
    if not count == len(a["end"]) == len(strides):
        return _of_all_axes(site)
    axes = range(count) if a["axes"] is None else a["axes"]
    places = tuple(site.axis(axis, data.order) for axis in axes)
    node = site.changed_call([data.get(data.order)], axes=places, strides=strides)
    return site.result(node, data.order, data.axes)


def _of_all_axes(site: Site) -> State | None:
    """One that leaves the beginning of an axis out, or its end: all axes are named."""
    data, a = site.value(), site.attrs
    begin, end, strides = (tuple(a[name]) for name in ("begin", "end", "strides"))
    if a["axes"] is not None or a["slice_mode"] != "end" or not has_known_sizes(data):
        return None
    if min(strides, default=1) < 1 or max(map(len, (begin, end, strides))) > data.ndim:
        return None
    whole = (*(0 for _ in data.type.shape),), data.type.shape, (*(1 for _ in data.type.shape),)
    begin, end, strides = (
        tuple(arranged((*given, *rest[len(given) :]), data.order))
        for given, rest in zip((begin, end, strides), whole, strict=True)
    )
    node = site.changed_call([data.get(data.order)], begin=begin, end=end, strides=strides)
    return site.result(node, data.order, data.axes)


def _slice_like(site: Site) -> State | None:
    data, like = site.value(0), site.value(1)
    if like.ndim != data.ndim:
        return None
    order, axes = site.chosen([data, like], data.ndim)
    given = site.attrs["axes"]
    node = site.changed_call(
        [data.get(order, axes), like.get(order, axes)],
        axes=given and tuple(site.place(axis, order) for axis in given),
    )
    return site.result(node, order, axes)


def _per_axis(name: str) -> Rule:
    """An attribute with an element for each axis."""

    def rule(site: Site) -> State | None:
        data, values = site.value(), site.attrs[name]
        if len(values) != data.ndim:
            return None
        args = [data.get(data.order), *(original(arg) for arg in site.args[1:])]
        node = site.changed_call(args, **{name: tuple(arranged(values, data.order))})
        return site.result(node, data.order, data.axes)

    return rule


# ---- the table -----------------------------------------------------------------------------------

_FAMILIES: dict[str, Rule] = {
    "zeros_like ones_like full_like": _filled_like,
    "zeros ones full": _filled_new,
    "broadcast_to": _broadcast_to,
    "collapse_sum_like": _collapse_sum_like,
    "collapse_sum_to": _collapse_sum_to,
    "nn.bias_add nn.prelu nn.softmax nn.log_softmax nn.lrn nn.layer_norm repeat": _axis,
    "nn.instance_norm": _instance_norm,
    "nn.batch_norm": _batch_norm,
    "nn.dropout": _dropout,
    "nn.l2_normalize": _axes,
    "variance": _variance,
    "concatenate": _concatenate,
    "split": _split,
    "strided_slice": _strided_slice,
    "topk": _topk,
    "sort argsort": _axis,
    "image.resize2d": _resized,
    "slice_like": _slice_like,
    "nn.pad": _per_axis("pad_width"),
    "tile": _per_axis("reps"),
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "layout_transform": _layout_transform,
}
RULES: dict[str, Rule] = {name: rule for names, rule in _FAMILIES.items() for name in names.split()}
for _op in REGISTRY.values():
    if _op.operands:
        RULES[_op.name] = _first if _op.operands == 1 else _broadcast
    elif _op.roles is not None and _op.roles.follows:
        RULES[_op.name] = _window
    elif _op.is_reduction:
        RULES[_op.name] = _arg_reduce if _op.name.startswith("arg") else _reduce
# What has other layouts at once though its operands are in the old one, or has no operands.
_MAKERS = (_filled_like, _filled_new, _transpose, _layout_transform)
MAKERS = frozenset(name for name, rule in RULES.items() if rule in _MAKERS)
