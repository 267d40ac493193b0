"""What each op does to a view's dimensions: one row per op.

A new op that moves or repeats elements is one function and one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tvm import relax, tirx

from ...ops.auxiliary import slice_bounds
from ...relation import as_size
from .index import (
    MAX_ANCHORS,
    ONE,
    Anchor,
    Atom,
    Atoms,
    Barrier,
    Dim,
    Refinement,
    View,
    extent,
    quotient,
    size_of,
)

Dims = tuple[Dim, ...]


def _axis(axis: Any, rank: int) -> int:
    return int(axis) % rank


def _axes(axes: Any, rank: int) -> list[int]:
    return [_axis(axis, rank) for axis in axes]


def _permute_dims(call: relax.Call, dims: Dims, found: Refinement) -> Dims:
    axes = call.attrs.axes
    order = range(len(dims))[::-1] if axes is None else _axes(axes, len(dims))
    return tuple(dims[axis] for axis in order)


def _reshape(call: relax.Call, dims: Dims, found: Refinement) -> Dims:
    """Any op that keeps the elements in their order: only the result's sizes count."""
    shape = call.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise Barrier("a shape is unknown")
    rest = [dim for dim in dims if dim.atoms or not dim.plain]
    out = []
    for value in shape.values:
        size = extent(value)
        taken: Atoms = ()
        made: Dim | None = None
        while size != ONE:
            if not rest:
                raise Barrier("sizes do not match")
            dim = rest.pop(0)
            if not dim.plain:
                made = _merged(taken, dim)
                left = quotient(size, dim.size)
                if left != ONE:
                    raise Barrier("a padded axis is reshaped")
                break
            left = quotient(size, dim.size)
            if left is None:
                # More than is needed: the rest stays for the next axes.
                head, tail = found.take(dim.atoms, size)
                rest.insert(0, Dim(tail))
                dim, left = Dim(head), ONE
            taken += dim.atoms
            size = left
        out.append(made if made is not None else Dim(taken))
    return tuple(out)


def _merged(major: Atoms, dim: Dim) -> Dim:
    """[major, dim] as one axis: an element among zeros, once for each `major`, is dilation."""
    if not major:
        return dim
    if dim.atoms:
        raise Barrier("a padded axis is reshaped")
    return Dim(major, dim.before + dim.after + 1, dim.before, dim.after)


def _tile(call: relax.Call, dims: Dims, found: Refinement) -> Dims:
    repeats = [int(r) for r in call.attrs.repeats]
    out = [Dim()] * (len(repeats) - len(dims)) + list(dims)
    repeats = [1] * (len(out) - len(repeats)) + repeats
    return tuple(
        Dim(_new(count) + _plain(dim).atoms) if count != 1 else dim
        for dim, count in zip(out, repeats, strict=True)
    )


def _repeat(call: relax.Call, dims: Dims, found: Refinement) -> Dims:
    if call.attrs.axis is None:
        raise Barrier("repeat without an axis")
    axis = _axis(call.attrs.axis, len(dims))
    more = Dim(_plain(dims[axis]).atoms + _new(int(call.attrs.repeats)))
    return (*dims[:axis], more, *dims[axis + 1 :])


def _broadcast_to(call: relax.Call, dims: Dims, found: Refinement) -> Dims:
    sizes = [extent(value) for value in call.ty.shape.values]
    out = [Dim()] * (len(sizes) - len(dims)) + list(dims)
    return tuple(
        Dim((Atom(size),)) if size != ONE and dim.plain and not dim.atoms else dim
        for dim, size in zip(out, sizes, strict=True)
    )


def _new(count: int) -> Atoms:
    if count < 1:
        raise Barrier("a tensor is empty")
    return (Atom((count, ())),) if count != 1 else ()


def _plain(dim: Dim) -> Dim:
    if not dim.plain:
        raise Barrier("a padded axis is repeated or cut")
    return dim


def _layout_transform(call: relax.Call, dims: Dims, found: Refinement) -> Dims:
    """Index maps of variables, their quotients and remainders by numbers, and sums of these."""
    index_map = call.attrs.index_map
    if call.attrs.pad_value is not None:
        raise Barrier("layout_transform pads")
    where = dict(zip(index_map.initial_indices, dims, strict=True))

    def atoms(expr: Any) -> Atoms:
        if isinstance(expr, tirx.Var) and expr in where:
            return _plain(where[expr]).atoms
        if isinstance(expr, tirx.IntImm) and int(expr.value) == 0:
            return ()
        if isinstance(expr, tirx.FloorDiv | tirx.FloorMod) and isinstance(expr.b, tirx.IntImm):
            inner = atoms(expr.a)
            major = quotient(size_of(inner), (int(expr.b.value), ()))
            if major is None:
                raise Barrier("layout_transform pads")
            head, tail = found.take(inner, major)
            return head if isinstance(expr, tirx.FloorDiv) else tail
        if isinstance(expr, tirx.Add) and isinstance(expr.a, tirx.Mul):
            minor, scale = atoms(expr.b), expr.a.b
            if isinstance(scale, tirx.IntImm) and size_of(minor) == (int(scale.value), ()):
                return atoms(expr.a.a) + minor
        raise Barrier(f"layout_transform to the index {expr}")

    return tuple(Dim(atoms(expr)) for expr in index_map.final_indices)


def bounds(call: relax.Call) -> list[tuple[int, Any, int]]:
    """(begin, count, stride) of each axis of a strided_slice; a whole symbolic axis is its own."""
    sizes = [as_size(value) for value in call.args[0].ty.shape.values]
    try:
        return slice_bounds(call, sizes)
    except (TypeError, ValueError):
        raise Barrier("strided_slice with symbolic bounds") from None


def _sliced_zeros(call: relax.Call, dims: Dims, found: Refinement) -> Dims:
    """A slice that only takes zeros away."""
    out = []
    for dim, (begin, count, stride) in zip(dims, bounds(call), strict=True):
        size = dim.size
        if extent(count) == size:
            out.append(dim)
            continue
        end = size[0] - begin - count
        if stride != 1 or begin > dim.before or end > dim.after:
            raise Barrier("strided_slice takes more than zeros away")
        out.append(replace(dim, before=dim.before - begin, after=dim.after - end))
    return tuple(out)


def _pad(call: relax.Call, dims: Dims, found: Refinement) -> Dims:
    if str(call.attrs.pad_mode) != "constant" or float(call.attrs.pad_value) != 0.0:
        raise Barrier("padding with other values than zero")
    widths = [int(width) for width in call.attrs.pad_width]
    if any(width < 0 for width in widths):
        raise Barrier("negative padding")
    return tuple(
        replace(dim, before=dim.before + before, after=dim.after + after)
        for dim, before, after in zip(dims, widths[::2], widths[1::2], strict=True)
    )


DimsRule = Callable[[relax.Call, Dims, Refinement], Dims]
KEEPING: Mapping[str, DimsRule] = {
    "relax.permute_dims": _permute_dims,
    "relax.layout_transform": _layout_transform,
    **dict.fromkeys(
        ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten",
         "relax.nn.batch_flatten"),
        _reshape,
    ),
}  # fmt: skip
"""Ops whose result has each element of their operand once."""
REPEATING: Mapping[str, DimsRule] = {
    "relax.tile": _tile,
    "relax.repeat": _repeat,
    "relax.broadcast_to": _broadcast_to,
}
SPREADING: Mapping[str, DimsRule] = {"relax.nn.pad": _pad, "relax.strided_slice": _sliced_zeros}
FLIP = "relax.flip"
VIEWS = frozenset({*KEEPING, *REPEATING, *SPREADING, FLIP})


def viewed(name: str, call: relax.Call, var: relax.Var | None, view: View, spread: bool) -> View:
    """The view that an op makes of its operand's view.

    `var` : the result, if it may be an anchor; `spread` : whether zeros may come in.  Raises
    Barrier for what is no such op.
    """
    found = Refinement()
    if name == FLIP:
        return _flipped(call, var, view)
    rule = KEEPING.get(name) or REPEATING.get(name) or (SPREADING.get(name) if spread else None)
    if rule is None:
        raise Barrier(f"{name.removeprefix('relax.')} is no map of indices")
    dims = rule(call, view.dims, found)
    return _anchored(found.view(View(dims, view.anchors)), var)


def _flipped(call: relax.Call, var: relax.Var | None, view: View) -> View:
    axis = _axis(call.attrs.axis, len(view.dims))
    dim = view.dims[axis]
    turned = replace(dim, before=dim.after, after=dim.before)
    anchors = tuple(
        replace(anchor, flipped=anchor.flipped ^ frozenset(dim.atoms), mirrored=True)
        for anchor in view.anchors
    )
    return _anchored(View((*view.dims[:axis], turned, *view.dims[axis + 1 :]), anchors), var)


def _anchored(view: View, var: relax.Var | None) -> View:
    """The view with its own tensor as an anchor too, unless it is a permutation of the last one."""
    if var is None or len(view.dims) != 4 or not view.plain:
        return view
    axes = tuple(dim.atoms for dim in view.dims)
    for last in view.anchors[-1:]:
        if not last.flipped and set(axes) == set(last.axes):
            return view
    return View(view.dims, (*view.anchors, Anchor(var, axes))[-MAX_ANCHORS:])
