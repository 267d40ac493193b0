"""Layouts with blocks: `NCHW4c` has the channels' outer axis second, and blocks of four last.

An axis may be split more than once, each block within the one before it (`OHWI16i64o2i`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tvm import relax, te

from ...layouts import is_permutation
from ..types import Dim, TensorType
from .relations import agree, divides, mapped, product
from .table import Builder, Call, Site, show
from .te import program

R = relax.op
Axes = list[tuple[str, int]]
_PARTS = re.compile(r"([A-Z])|([1-9]\d*)([a-z])")


def axes_of(text: str) -> Axes | None:
    """`NCHW4c` -> [(N, 0), (C, 0), (H, 0), (W, 0), (C, 4)]: axes, and blocks with their size.

    None for what is no layout.
    """
    parts = _PARTS.findall(text)
    axes = [(big, 0) if big else (small.upper(), int(size)) for big, size, small in parts]
    outer = [axis for axis, block in axes if not block]
    spelled = "".join(big or size + small for big, size, small in parts)
    if not axes or spelled != text or len(set(outer)) != len(outer):
        return None
    return axes if {axis for axis, _ in axes} == set(outer) else None


def parse_layout(call: Call, name: str, text: str) -> Axes:
    """As `axes_of`; the call is refused for what is no layout."""
    axes = axes_of(text)
    if axes is None:
        call.fail(f"cannot convert from/to undefined layout: {name}={text!r}")
    return axes


def primal_axes(layout: str) -> str:
    """A layout's axes without blocks."""
    return "".join(letter for letter in layout if letter.isupper())


def is_blocked(layout: str, canonical: str, whole: str = "") -> bool:
    """Whether a layout has the canonical axes and blocks, none of them of `whole` axes."""
    axes = axes_of(layout)
    if axes is None or not is_permutation(primal_axes(layout), canonical):
        return False
    return any(block for _, block in axes) and all(a not in whole for a, b in axes if b)


def factor(axes: Sequence[tuple[str, int]], axis: str) -> int:
    """How many of an axis are within its outermost part; 1 if it is whole."""
    return prod(block or 1 for name, block in axes if name == axis)


def whole_sizes(call: Call, index: int, name: str, layout: str) -> dict[str, Dim]:
    """The size of each axis of an argument in a layout, its blocks counted."""
    axes, data = parse_layout(call, name, layout), call.tensor(index)
    if len(data.shape) != len(axes):
        call.fail(f"{name}={layout} has {len(axes)} axes, got {show(data)}")
    sizes: dict[str, Dim] = {}
    for (axis, block), size in zip(axes, data.shape, strict=True):
        if block and not agree(size, block):
            call.fail(f"{name}={layout} has a block of {block}, got {show(data)}")
        sizes[axis] = product((sizes.get(axis, 1), size))
    return sizes


def split_sizes(call: Call, axes: Axes, sizes: dict[str, Dim]) -> tuple[Dim, ...]:
    """A tensor's shape in a layout, from the whole size of each axis."""
    out: list[Dim] = []
    for axis, block in axes:
        if block:
            out.append(block)
            continue
        size, within = sizes[axis], factor(axes, axis)
        if not divides(within, size):
            call.fail(f"axis {axis} of size {size} cannot be split into blocks of {within}")
        out.append(mapped(size, lambda n, f=within: n // f))  # type: ignore[misc]
    return tuple(out)


def _numbered(axes: Axes) -> list[tuple[str, int]]:
    """(axis, which of its parts, from the outermost), in the layout's order."""
    seen: dict[str, int] = {}
    out = []
    for axis, block in axes:
        if block:
            seen[axis] = seen.get(axis, 0) + 1
        out.append((axis, seen[axis] if block else 0))
    return out


def relayout(s: Site, x: Any, src: Axes, dst: Axes, sizes: dict[str, Dim]) -> Any:
    """Merge the source's blocks, transpose, split into the destination's."""
    if not all(isinstance(size, int) for size in sizes.values()):
        return program(s, lambda _, tensor: _as_kernel(tensor, src, dst), x)
    order = [axis for axis, block in src if not block]
    if any(block for _, block in src):
        parts = _numbered(src)
        moved = [parts.index(part) for axis in order for part in sorted(parts) if part[0] == axis]
        x = s.emit(R.permute_dims(x, moved))
        x = s.emit(s.reshape(x, [sizes[axis] for axis in order]))
    parts = [(axis, 0) for axis in order]
    if any(block for _, block in dst):
        wanted = dict(zip(_numbered(dst), dst, strict=True))
        parts = [part for axis in order for part in sorted(wanted) if part[0] == axis]
        shape = split_sizes(s, [wanted[part] for part in parts], sizes)
        x = s.emit(s.reshape(x, shape))
    moved = [parts.index(part) for part in _numbered(dst)]
    return x if moved == sorted(moved) else R.permute_dims(x, moved)


def _as_kernel(x: Any, src: Axes, dst: Axes) -> Any:
    """The same as one kernel, which divides by blocks alone.

    TVM's reshape divides by every size; where these are expressions of others, such as those of
    windows with a stride, its code is so deeply nested that LLVM's comes to no end.
    """
    places = {part: i for i, part in enumerate(_numbered(src))}
    wanted = {part: i for i, part in enumerate(_numbered(dst))}
    whole = {
        axis: prod((x.shape[i] for (name, _), i in places.items() if name == axis), start=1)
        for axis, _ in src
    }
    shape = [block or whole[axis] // factor(dst, axis) for axis, block in dst]

    def element(*at: Any) -> Any:
        index: dict[str, Any] = {}
        for (axis, number), i in sorted(wanted.items()):
            block = dst[i][1]
            index[axis] = index[axis] * block + at[i] if number else at[i]
        where: list[Any] = [None] * len(src)
        for (axis, _), i in sorted(places.items(), reverse=True):
            block = src[i][1]
            where[i] = index[axis] % block if block else index[axis]
            index[axis] = index[axis] // block if block else index[axis]
        return x(*where)

    return te.compute(shape, element, name="relayout")


def on_whole_axes(build: Builder) -> Builder:
    """A form for tensors in `layout`, also where that has blocks: they are merged around it."""

    def built(s: Site) -> Any:
        layout = str(s.attrs["layout"])
        axes = parse_layout(s, "layout", layout)
        if not any(block for _, block in axes):
            return build(s)
        names = primal_axes(layout)
        merged: Axes = [(axis, 0) for axis in names]
        args, types = [], []
        for index, arg in enumerate(s.args):
            sizes = whole_sizes(s, index, "layout", layout)
            args.append(s.emit(relayout(s, arg, axes, merged, sizes)))
            shape = tuple(sizes[axis] for axis in names)
            types.append(TensorType(shape, s.tensor(index).dtype))
        made = whole_sizes(replace(s, types=(s.out,)), 0, "layout", layout)
        out = TensorType(tuple(made[axis] for axis in names), s.result_type.dtype)
        attrs = {**s.attrs, "layout": names}
        inner = replace(s, args=tuple(args), types=tuple(types), attrs=attrs, out=out)
        return relayout(s, s.emit(build(inner)), merged, axes, made)

    return built


def of_whole_axes(s: Site, layouts: Sequence[tuple[str, str]], build: Callable[..., Any]) -> Any:
    """What `build` makes of arguments without blocks, in the result's layout.

    layouts : (attribute, layout) of each argument, and last of the result.
    """
    args = []
    for index, (arg, (name, layout)) in enumerate(zip(s.args, layouts[:-1], strict=True)):
        axes, merged = parse_layout(s, name, layout), [(axis, 0) for axis in primal_axes(layout)]
        if axes != merged:
            arg = s.emit(relayout(s, arg, axes, merged, whole_sizes(s, index, name, layout)))
        args.append(arg)
    out = build(*args)
    name, layout = layouts[-1]
    axes, merged = parse_layout(s, name, layout), [(axis, 0) for axis in primal_axes(layout)]
    if axes == merged:
        return out
    sizes = whole_sizes(replace(s, types=(s.out,)), 0, name, layout)
    return relayout(s, s.emit(out), merged, axes, sizes)
