"""A convolution of two views, and what follows it, as one sum over atoms.

conv2d multiplies an image by a filter and sums over their common channels.  Of the image's channels
the leading factors are the groups, and so are those of the filter's outputs; these atoms, and those
of the channels within a group, are the same index on both sides.  That is all a convolution does
to atoms besides its two spatial axes, which are new ones:

    image (N', G ++ C', H', W')   filter (G ++ K', C', R', S')   ->   (N', G ++ K', P', Q')

with the C' atoms summed.  Reshapes and transposes that follow move atoms as they do in a view, a
sum adds to those that are summed, and a slice from the start shortens a spatial axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ...attrs import ConvAttrs, read_conv
from ...layouts import ACTIVATION, KERNEL, is_permutation, to_layout
from .index import Anchor, Atom, Atoms, Barrier, Dim, Refinement, View, axes_of, renamed, size_of
from .ops import KEEPING, bounds


@dataclass(frozen=True)
class Product:
    """A convolution's result, or what was made of it.

    `image_hw` and `filter_rs` : the operands' spatial axes; `out_hw` : the result's; `summed` :
    atoms over which there is a sum; `inside` : whether the convolution itself sums over some.
    """

    attrs: ConvAttrs
    image: tuple[Anchor, ...]
    filter: tuple[Anchor, ...]
    image_hw: tuple[Dim, Dim]
    filter_rs: tuple[Atoms, Atoms]
    out_hw: tuple[Atoms, Atoms]
    dims: tuple[Dim, ...]
    summed: Atoms
    inside: bool

    def refined(self, found: Refinement) -> Product:
        h, w = self.image_hw
        r, s = self.filter_rs
        p, q = self.out_hw
        return replace(
            self,
            image=tuple(map(found.anchor, self.image)),
            filter=tuple(map(found.anchor, self.filter)),
            image_hw=(found.dim(h), found.dim(w)),
            filter_rs=(found.resolve(r), found.resolve(s)),
            out_hw=(found.resolve(p), found.resolve(q)),
            dims=tuple(map(found.dim, self.dims)),
            summed=found.resolve(self.summed),
        )


def product(call: relax.Call, image: View, weights: View) -> Product:
    """The product that a conv2d makes of its operands' views; the filter's must be plain.

    Raises Barrier where it is none: a blocked layout, channels that no common factors describe.
    """
    attrs = read_conv(call, 2)
    if not _unblocked(attrs):
        raise Barrier("a blocked layout")
    weights = renamed(weights)
    n, c, h, w = to_layout(image.dims, attrs.data_layout, ACTIVATION)
    o, i, r, s = to_layout(weights.dims, attrs.kernel_layout, KERNEL)
    if not (n.plain and c.plain and weights.plain):
        raise Barrier("channels or filters are padded")
    found = Refinement()
    groups = (attrs.groups, ())
    try:
        data_groups, data_channels = found.take(c.atoms, groups)
        weight_groups, weight_filters = found.take(o.atoms, groups)
        found.equate(data_groups, weight_groups)
        found.equate(data_channels, i.atoms)
    except Barrier as why:
        raise Barrier(
            f"the convolution's channels and filters, in groups of {attrs.groups}, have no common"
            f" factors: {why}"
        ) from None
    out_h, out_w = to_layout(axes_of(call), attrs.grad_layout, ACTIVATION)[2:]
    k = Dim(data_groups + weight_filters)
    dims = to_layout((n, k, Dim(out_h), Dim(out_w)), ACTIVATION, attrs.grad_layout)
    made = Product(
        attrs, image.anchors, weights.anchors, (h, w), (r.atoms, s.atoms), (out_h, out_w), dims,
        data_channels, bool(data_channels),
    )  # fmt: skip
    return made.refined(found)


def followed(name: str, call: relax.Call, before: Product) -> Product:
    """The product after one more op.  Raises Barrier where the op is more than a sum of atoms."""
    if name == "relax.sum":
        return _summed(call, before)
    if name == "relax.strided_slice":
        return _cropped(call, before)
    rule = KEEPING.get(name)
    if rule is None:
        raise Barrier(f"{name.removeprefix('relax.')} follows")
    found = Refinement()
    dims = rule(call, before.dims, found)
    return replace(before, dims=dims).refined(found)


def _summed(call: relax.Call, before: Product) -> Product:
    rank = len(before.dims)
    axes = call.attrs.axis
    chosen = set(range(rank)) if axes is None else {int(axis) % rank for axis in axes}
    gone = tuple(atom for axis in sorted(chosen) for atom in before.dims[axis].atoms)
    dims: list[Dim] = []
    for axis, dim in enumerate(before.dims):
        if axis not in chosen:
            dims.append(dim)
        elif call.attrs.keepdims:
            dims.append(Dim())
    return replace(before, dims=tuple(dims), summed=before.summed + gone)


def _cropped(call: relax.Call, before: Product) -> Product:
    dims, out_hw = list(before.dims), list(before.out_hw)
    for axis, (begin, count, stride) in enumerate(bounds(call)):
        dim = dims[axis]
        if not isinstance(count, int) or (count, ()) == size_of(dim.atoms):
            continue
        if dim.atoms not in out_hw:
            raise Barrier(f"strided_slice of axis {axis}, which is not of pixels, follows")
        if (begin, stride) != (0, 1) or count < 1:
            raise Barrier(
                f"strided_slice takes [{begin}:{begin + count * stride}:{stride}] of"
                f" {size_of(dim.atoms)[0]} taps, not the first ones"
            )
        shorter: Atoms = (Atom((count, ())),) if count > 1 else ()
        out_hw[out_hw.index(dim.atoms)] = shorter
        dims[axis] = Dim(shorter)
    return replace(before, dims=tuple(dims), out_hw=(out_hw[0], out_hw[1]))


def is_forward(call: relax.Call, image: View, weights: View) -> bool:
    """Whether a convolution reads its operands as a forward one does, or is beyond this package.

    A forward convolution of one group is a weight gradient with N and C swapped, so it is not what
    they compute that tells them apart but which axis comes first: programs keep images first, in
    NCHW as in NHWC, in activations as in their gradients.
    """
    attrs = read_conv(call, 2)
    if not _unblocked(attrs) or not image.anchors or not weights.anchors:
        return True
    n = to_layout(image.dims, attrs.data_layout, ACTIVATION)[0].atoms
    o, _, r, s = (dim.atoms for dim in to_layout(weights.dims, attrs.kernel_layout, KERNEL))
    first = image.anchors[0].axes[0]
    if first or n:
        return first == n
    # One image.  A gradient has its one image first too, and may be repeated for each channel, or
    # have several axes joined; a weight has its filters first, or its taps.
    axes = weights.anchors[0].axes
    own = [axis for axis, atoms in enumerate(axes) if set(atoms) & set(o)]
    if len(own) > 1 or {atom for axis in own for atom in axes[axis]} < set(o):
        return False
    if own:
        return own != [1] and not (own == [3] and not axes[0])
    p, q = to_layout(axes_of(call), attrs.grad_layout, ACTIVATION)[2:]
    return size_of(r + s)[0] <= size_of(p + q)[0]


def _unblocked(attrs: ConvAttrs) -> bool:
    return is_permutation(attrs.kernel_layout, KERNEL) and all(
        is_permutation(layout, ACTIVATION) for layout in (attrs.data_layout, attrs.grad_layout)
    )


def describe(value: Any) -> str:
    """A tensor's name in a reason."""
    return f"%{value.name}" if isinstance(value, relax.Var) else "a constant"
