"""Values of a program on their way to Relax: known numbers, broadcasts that nobody has made yet,
permutations and reversals that may cancel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tvm import relax

from ...transform.raising.index import ONE, Atom, Atoms, Barrier, Refinement
from ..context import Context, shape_of
from ..weights import Array

op = relax.op
Shape = tuple[int, ...]


@dataclass(eq=False)
class Tensor:
    """One value.

    part : an array where the value is known, else a Relax expression; with size 1 along axes of
        which all elements are the same (its rank is that of `shape`).
    view : how its elements are those of another tensor, in another order.
    padded : what it is with a border, if that is known.
    argument : whether the program is given it, or makes it of what it is given by a cast or a view.
    """

    shape: Shape
    dtype: str
    part: Any
    view: View | None = None
    padded: Padded | None = None
    argument: bool = False
    whole: Any = None  # the expression of its full shape, once someone asked for it

    @property
    def known(self) -> bool:
        return isinstance(self.part, np.ndarray)

    @property
    def narrow(self) -> Shape:
        """The shape of `part`."""
        return tuple(self.part.shape) if self.known else shape_of(self.part)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def array(self) -> Array:
        """The whole value; of a known one."""
        return np.broadcast_to(self.part, self.shape)

    def number(self) -> Any:
        """The one number that a known tensor is filled with, None for others."""
        return self.part.reshape(-1)[0] if self.known and self.part.size == 1 else None

    def full(self, ctx: Context) -> Any:
        """The expression of the whole."""
        if self.whole is None:
            part = self.expr()
            self.whole = part
            if self.narrow != self.shape:
                self.whole = ctx.emit(op.broadcast_to(part, self.shape))
        return self.whole

    def expr(self) -> Any:
        """The expression of `part`."""
        return relax.const(self.part, self.dtype) if self.known else self.part


@dataclass(frozen=True)
class Padded:
    """A tensor with a border, and others between its elements."""

    source: Tensor
    low: Shape
    high: Shape
    interior: Shape
    value: float


def of_expr(expr: Any, **given: Any) -> Tensor:
    return Tensor(shape_of(expr), str(expr.ty.dtype), expr, **given)


def of_array(array: Array, dtype: str, shape: Shape | None = None) -> Tensor:
    """A known value; one number for all where it is that."""
    shape = tuple(array.shape) if shape is None else shape
    if array.size > 1 and (array == array.reshape(-1)[0]).all():
        array = array.reshape(-1)[:1].reshape((1,) * len(shape))
    return Tensor(shape, dtype, array)


# ---- views ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """A tensor whose elements are those of `source`, each once.

    axes : the source's, in atoms (`relay_wgrad.transform.raising.index`).
    dims : the view's own, in the same.
    flipped : atoms that are read backwards.
    """

    source: Tensor
    axes: tuple[Atoms, ...]
    dims: tuple[Atoms, ...]
    flipped: frozenset[Atom] = field(default_factory=frozenset)

    @property
    def is_source(self) -> bool:
        return self.dims == self.axes and not self.flipped

    def transposed(self, order: Sequence[int]) -> View:
        return replace(self, dims=tuple(self.dims[axis] for axis in order))

    def turned(self, axes: Iterable[int]) -> View:
        """Read backwards along these axes."""
        atoms = frozenset(atom for axis in axes for atom in self.dims[axis])
        return replace(self, flipped=self.flipped ^ atoms)

    def reshaped(self, shape: Sequence[int]) -> View:
        """Raises Barrier where an axis is cut where no factor of it ends."""
        found = Refinement()
        rest: Atoms = tuple(atom for dim in self.dims for atom in dim)
        dims = []
        for size in shape:
            head, rest = found.take(rest, (size, ()))
            dims.append(head)
        # An axis that is read backwards is so in its parts.
        return View(
            self.source, tuple(map(found.resolve, self.axes)), tuple(map(found.resolve, dims)),
            frozenset(found.resolve(self.flipped)),
        )  # fmt: skip

    def tensor(self, ctx: Context) -> Tensor:
        """What the view is: its source, or by as few steps from it as there need be."""
        if self.is_source:
            return self.source
        x = self.source.full(ctx)
        order: Atoms = tuple(atom for axis in self.axes for atom in axis)
        wanted: Atoms = tuple(atom for dim in self.dims for atom in dim)
        shape = tuple(math.prod(a.size[0] for a in dim) for dim in self.dims)
        if self.dims == self.axes and all(self.flipped >= {*d} or self.flipped.isdisjoint(d)
                                          for d in self.dims):  # fmt: skip
            for axis, dim in enumerate(self.dims):
                if self.flipped.intersection(dim):
                    x = ctx.emit(op.flip(x, axis))
        else:
            if self.flipped or order != wanted:
                x = reshaped(ctx, x, [atom.size[0] for atom in order])
            for axis, atom in enumerate(order):
                if atom in self.flipped:
                    x = ctx.emit(op.flip(x, axis))
            if order != wanted:
                x = ctx.emit(op.permute_dims(x, [order.index(atom) for atom in wanted]))
            x = reshaped(ctx, x, shape)
        return Tensor(shape, self.source.dtype, x, self, argument=self.source.argument)


def view_of(tensor: Tensor) -> View:
    if tensor.view is not None:
        return tensor.view
    axes = tuple(() if size == ONE[0] else (Atom((size, ())),) for size in tensor.shape)
    return View(tensor, axes, axes)


def reshaped(ctx: Context, x: Any, shape: Sequence[int]) -> Any:
    return x if shape_of(x) == tuple(shape) else ctx.emit(op.reshape(x, tuple(shape)))


def reshape(ctx: Context, x: Tensor, shape: Shape) -> Tensor:
    """The elements in their order."""
    if shape == x.shape:
        return x
    kept = [n for n in x.narrow if n != 1]
    if kept != [n for n in x.shape if n != 1]:  # filled, or the same along some axes
        part = _spread(x, shape)
        if part is not None:
            made = x.part.reshape(part) if x.known else reshaped(ctx, x.part, part)
            return Tensor(shape, x.dtype, made, argument=x.argument)
        x = Tensor(x.shape, x.dtype, x.array() if x.known else x.full(ctx), argument=x.argument)
    if x.known:
        return Tensor(shape, x.dtype, x.part.reshape(shape))
    try:
        view = view_of(x).reshaped(shape)
    except Barrier:
        return Tensor(shape, x.dtype, reshaped(ctx, x.full(ctx), shape), argument=x.argument)
    if view.is_source:
        return view.source
    made = reshaped(ctx, x.full(ctx), shape)
    return Tensor(shape, x.dtype, made, view, argument=x.argument)


def _spread(x: Tensor, shape: Shape) -> Shape | None:
    """The shape of a part, of a reshape that adds or drops axes of size 1; None of others."""
    own = [(n, p) for n, p in zip(x.shape, x.narrow, strict=True) if n != 1]
    if all(p == 1 for _, p in own):
        return (1,) * len(shape)
    if [n for n, _ in own] != [n for n in shape if n != 1]:
        return None
    parts = iter(p for _, p in own)
    return tuple(1 if n == 1 else next(parts) for n in shape)


def transpose(ctx: Context, x: Tensor, order: Sequence[int]) -> Tensor:
    """The axes in another order."""
    if list(order) == sorted(order):
        return x
    shape = tuple(x.shape[axis] for axis in order)
    if x.known:
        return Tensor(shape, x.dtype, x.part.transpose(order))
    view = view_of(x).transposed(order) if x.narrow == x.shape else None
    if view is not None and view.is_source:
        return view.source
    made = ctx.emit(op.permute_dims(x.part, list(order)))
    return Tensor(shape, x.dtype, made, view, argument=x.argument)


def reverse(ctx: Context, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Read backwards along these axes."""
    if x.known:
        return Tensor(x.shape, x.dtype, np.flip(x.part, tuple(axes)))
    view = view_of(x).turned(axes) if x.narrow == x.shape else None
    if view is not None and view.is_source:
        return view.source
    made = x.part
    for axis in axes:
        if x.narrow[axis] > 1:
            made = ctx.emit(op.flip(made, axis))
    return Tensor(x.shape, x.dtype, made, view, argument=x.argument)
