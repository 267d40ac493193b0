"""How slices, and what has a number for each axis, follow the layout of their operand."""

from __future__ import annotations

from collections.abc import Callable

from .site import Site, original
from .values import State, arranged, known

Rule = Callable[[Site], "State | None"]


def strided_slice(site: Site) -> State | None:
    data, a = site.value(), site.attrs
    count = len(a["begin"])
    strides = tuple(a["strides"]) + (1,) * (count - len(a["strides"]))
    if not count == len(a["end"]) == len(strides):
        return _of_all_axes(site)
    axes = range(count) if a["axes"] is None else a["axes"]
    places = tuple(site.axis(axis, data.order) for axis in axes)
    node = site.made([data.get(data.order)], axes=places, strides=strides)
    return site.result(node, data.order, data.axes)


def _of_all_axes(site: Site) -> State | None:
    """One that leaves the beginning of an axis out, or its end: all axes are named."""
    data, a = site.value(), site.attrs
    begin, end, strides = (tuple(a[name]) for name in ("begin", "end", "strides"))
    if a["axes"] is not None or a["slice_mode"] != "end" or not known(data):
        return None
    if min(strides, default=1) < 1 or max(map(len, (begin, end, strides))) > data.ndim:
        return None
    whole = (*(0 for _ in data.type.shape),), data.type.shape, (*(1 for _ in data.type.shape),)
    begin, end, strides = (
        tuple(arranged((*given, *rest[len(given) :]), data.order))
        for given, rest in zip((begin, end, strides), whole, strict=True)
    )
    node = site.made([data.get(data.order)], begin=begin, end=end, strides=strides)
    return site.result(node, data.order, data.axes)


def slice_like(site: Site) -> State | None:
    data, like = site.value(0), site.value(1)
    if like.ndim != data.ndim:
        return None
    order, axes = site.chosen([data, like], data.ndim)
    given = site.attrs["axes"]
    node = site.made(
        [data.get(order, axes), like.get(order, axes)],
        axes=given and tuple(site.place(axis, order) for axis in given),
    )
    return site.result(node, order, axes)


def per_axis(name: str) -> Rule:
    """An attribute with an element for each axis."""

    def rule(site: Site) -> State | None:
        data, values = site.value(), site.attrs[name]
        if len(values) != data.ndim:
            return None
        args = [data.get(data.order), *(original(arg) for arg in site.args[1:])]
        node = site.made(args, **{name: tuple(arranged(values, data.order))})
        return site.result(node, data.order, data.axes)

    return rule
