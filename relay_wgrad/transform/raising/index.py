"""Tensors as views of other tensors, in exact index algebra: what `transform` proves with.

An *atom* is an index that runs over 0 … size-1.  A dimension of a view is a list of atoms, the
major one first: [a, b] is the index a*size(b) + b.  Reshaping regroups the list, or splits an atom
into two; permuting reorders dimensions; tiling brings an atom of its own, on which no element
depends; flipping marks atoms as read backwards.  What such a chain computes is then plain to see,
however many layout changes are in it, and two equal sizes are never taken for each other, since an
atom is itself and not its size.  Axes of size 1 have no atoms.

A view tells where its element stands in other tensors, its *anchors*: tensors of rank 4 that it was
made from, from far to near, each with its axes in the same atoms.  What is no such map (a slice,
an addition) raises `Barrier` with the reason, and its result is an anchor itself.

*Spread* views allow zeros as well: index step*i + before of `after` and `before` zeros around a
dimension and step-1 between its elements, as padding and dilation make them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax, tirx

from ...relation import as_size

MAX_ANCHORS = 4  # the nearest ones are kept: chains may be long

# ---- sizes ---------------------------------------------------------------------------------------

Extent = tuple[int, tuple[Any, ...]]  # a number times symbols, so that symbolic sizes divide too
ONE: Extent = (1, ())


class Barrier(Exception):  # noqa: N818 - says why, and is no error
    """Why an op is no map of indices, or a program no gradient."""


def extent(size: Any) -> Extent:
    """A size of a tensor's type; what is no product counts as one symbol."""
    size = as_size(size)
    if isinstance(size, int):
        return (size, ())
    if isinstance(size, tirx.Mul):
        return times(extent(size.a), extent(size.b))
    # Two variables of one name are two: their addresses tell.
    names = tuple(sorted(hash(v) for v in tirx.analysis.undefined_vars(size)))
    return (1, ((str(size), names),))


def times(a: Extent, b: Extent) -> Extent:
    return (a[0] * b[0], tuple(sorted(a[1] + b[1])))


def quotient(a: Extent, b: Extent) -> Extent | None:
    """a / b where that is whole."""
    rest = list(a[1])
    for symbol in b[1]:
        if symbol not in rest:
            return None
        rest.remove(symbol)
    return (a[0] // b[0], tuple(rest)) if b[0] and a[0] % b[0] == 0 else None


# ---- views ---------------------------------------------------------------------------------------


class Atom:
    """An index of its own, told from others by identity."""

    __slots__ = ("size",)

    def __init__(self, size: Extent) -> None:
        self.size = size


Atoms = tuple[Atom, ...]


def size_of(atoms: Iterable[Atom]) -> Extent:
    size = ONE
    for atom in atoms:
        size = times(size, atom.size)
    return size


@dataclass(frozen=True)
class Dim:
    """One dimension: its atoms, and the zeros that a spread view has between and around them."""

    atoms: Atoms = ()
    step: int = 1
    before: int = 0
    after: int = 0

    @property
    def plain(self) -> bool:
        return (self.step, self.before, self.after) == (1, 0, 0)

    @property
    def size(self) -> Extent:
        size = size_of(self.atoms)
        if self.plain:
            return size
        if size[1]:
            raise Barrier("zeros between elements whose number is symbolic")
        return ((size[0] - 1) * self.step + 1 + self.before + self.after, ())


@dataclass(frozen=True)
class Anchor:
    """A tensor of rank 4, its axes in a view's atoms; `flipped` ones are read backwards.

    `mirrored` : a flip is on the way, of whatever size.
    """

    tensor: relax.Expr
    axes: tuple[Atoms, ...]
    flipped: frozenset[Atom] = frozenset()
    mirrored: bool = False


@dataclass(frozen=True)
class View:
    dims: tuple[Dim, ...]
    anchors: tuple[Anchor, ...]

    @property
    def plain(self) -> bool:
        return all(dim.plain for dim in self.dims)


def axes_of(tensor: relax.Expr) -> tuple[Atoms, ...]:
    """New atoms for a tensor's axes."""
    ty = tensor.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        raise Barrier(f"a shape is unknown: {ty}")
    sizes = [extent(size) for size in ty.shape.values]
    if any(size[0] < 1 for size in sizes):
        raise Barrier(f"a tensor is empty: {ty}")
    return tuple(() if size == ONE else (Atom(size),) for size in sizes)


def itself(tensor: relax.Expr) -> View:
    """A tensor as its own view."""
    axes = axes_of(tensor)
    anchors = (Anchor(tensor, axes),) if len(axes) == 4 else ()
    return View(tuple(map(Dim, axes)), anchors)


@dataclass
class Refinement:
    """Atoms that turned out to consist of others, or to be others."""

    parts: dict[Atom, Atoms] = field(default_factory=dict)

    def resolve(self, atoms: Iterable[Atom]) -> Atoms:
        out: list[Atom] = []
        rest = list(atoms)[::-1]
        while rest:
            atom = rest.pop()
            if atom in self.parts:
                rest += self.parts[atom][::-1]
            else:
                out.append(atom)
        return tuple(out)

    def split(self, atom: Atom, minor: Extent) -> Atoms:
        major = quotient(atom.size, minor)
        assert major is not None
        self.parts[atom] = (Atom(major), Atom(minor))
        return self.parts[atom]

    def take(self, atoms: Atoms, size: Extent) -> tuple[Atoms, Atoms]:
        """The leading atoms of a size, and the others; splits the one that lies across."""
        rest = list(self.resolve(atoms))
        head: list[Atom] = []
        missing = size
        while missing != ONE:
            if not rest:
                raise Barrier("sizes do not match")
            atom = rest.pop(0)
            left = quotient(missing, atom.size)
            if left is None:
                minor = quotient(atom.size, missing)
                if minor is None:
                    raise Barrier("an axis is cut where no factor of it ends")
                atom, tail = self.split(atom, minor)
                rest.insert(0, tail)
                left = ONE
            head.append(atom)
            missing = left
        return tuple(head), tuple(rest)

    def equate(self, first: Atoms, second: Atoms) -> None:
        """Makes two lists of one size the same index."""
        a, b = list(self.resolve(first)), list(self.resolve(second))
        while a and b:
            x, y = a.pop(0), b.pop(0)
            if x.size == y.size:
                self.parts[y] = (x,)
                continue
            more = quotient(x.size, y.size)
            less = quotient(y.size, x.size)
            if more is not None:
                x, tail = self.split(x, more)
                self.parts[y] = (x,)
                a.insert(0, tail)
            elif less is not None:
                y, tail = self.split(y, less)
                self.parts[y] = (x,)
                b.insert(0, tail)
            else:
                raise Barrier("an axis is cut where no factor of it ends")
        if a or b:
            raise Barrier("sizes do not match")

    def dim(self, dim: Dim) -> Dim:
        return replace(dim, atoms=self.resolve(dim.atoms))

    def anchor(self, anchor: Anchor) -> Anchor:
        axes = tuple(map(self.resolve, anchor.axes))
        return replace(anchor, axes=axes, flipped=frozenset(self.resolve(anchor.flipped)))

    def view(self, view: View) -> View:
        return View(tuple(map(self.dim, view.dims)), tuple(map(self.anchor, view.anchors)))


def renamed(view: View) -> View:
    """The view with atoms of its own, so that one tensor can be both operands of a convolution."""
    atoms = {atom for anchor in view.anchors for axis in anchor.axes for atom in axis}
    atoms |= {atom for dim in view.dims for atom in dim.atoms}
    return Refinement({atom: (Atom(atom.size),) for atom in atoms}).view(view)
