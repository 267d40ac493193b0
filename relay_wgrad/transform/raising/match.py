"""Which products are gradients: the whole of the proof, in the letters of `relay_wgrad.problem`.

A product's atoms fall into classes by where they occur: in the image's anchor, in the filter's, in
the result, in the sum.  That decides what it computes.

wgrad, the image being data and the filter the incoming gradient:

    atoms    image (N, C, H, W)   filter (N, K, P, Q)   result (K, C/groups, R, S)
    N        all of N             all of N              summed, and nothing else is
    groups   leading in C         leading in K          leading in K
    C/groups the rest of C        -                     all of its axis
    K/groups -                    the rest of K         the rest of K

with the convolution's strides as dilation, its dilation as strides, its padding, and R, S as far
as the gradient's slice goes.

dgrad, the image being the incoming gradient among zeros and the filter the flipped weight:

    atoms    image (N, K, P, Q)   filter (K, C/groups, R, S)   result (N, C, H, W)
    N        all of N             -                            all of N
    groups   leading in K         leading in K                 leading in C
    K/groups the rest of K        the rest of K                summed, and nothing else is
    C/groups -                    all of its axis              the rest of C

with pixel p at step*p + before and tap r flipped, so that it lies at dilation*(R-1-r): the result's
row h takes h + top = step*p + dilation*r for top = dilation*(R-1) - before.

Lists of atoms are compared in order, so a permutation within an axis is no match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax

from ...attrs import ConvAttrs
from ...layouts import ACTIVATION, KERNEL
from ...ops.algebra import dgrad_call, wgrad_call
from .index import Anchor, Atom, Atoms, Barrier, Dim, size_of
from .product import Product, describe

MINOR_GROUPS = (
    "Relay's composite for 1 < groups < channels pairs group g with the input channels that are g"
    " modulo the groups: that is no weight gradient of this data, and stays"
)


Finish = Callable[[relax.Expr], relax.Call]  # types a call and checks it; raises Barrier


def weight_gradient(p: Product, var: relax.Var, finish: Finish) -> relax.Call:
    """The wgrad that a product is; Barrier with the reason where it is none.

    Any depthwise convolution is a weight gradient of one image, that of its reshaped operands; what
    has several images in its source is not taken for that.
    """
    if not p.summed and (_has_images(p.image, [dim.atoms for dim in p.image_hw])
                         or _has_images(p.filter, p.filter_rs)):  # fmt: skip
        raise Barrier("the sum runs over nothing, not over the images")
    return _first(p, lambda data, grad: finish(_weight(p, var, data, grad)))


def _has_images(anchors: Sequence[Anchor], pixels: Sequence[Atoms]) -> bool:
    """Whether the source has an axis of several images besides its channels and pixels."""
    return any(
        len([axis for axis in anchor.axes if axis and axis not in pixels]) > 1
        for anchor in anchors[:1]
    )


def data_gradient(p: Product, var: relax.Var, finish: Finish) -> relax.Call:
    """The dgrad that a product is; Barrier with the reason where it is none."""
    if p.attrs.strides != (1, 1):
        raise Barrier(f"the convolution has strides {p.attrs.strides}, a data gradient's has none")
    return _first(p, lambda grad, weight: finish(_data(p, var, grad, weight)))


def _first(p: Product, attempt: Callable[[Anchor, Anchor], relax.Call]) -> relax.Call:
    """The first pair of anchors that matches, else the reason of the first pair, from afar."""
    reason: Barrier | None = None
    for image in p.image:
        for weights in p.filter:
            try:
                return attempt(image, weights)
            except Barrier as why:
                reason = reason or why
    raise reason or Barrier("its operands are made of no tensor of rank 4")


# ---- wgrad ---------------------------------------------------------------------------------------


def _weight(p: Product, var: relax.Var, data: Anchor, grad: Anchor) -> relax.Expr:
    for anchor, role in ((data, "data"), (grad, "the gradient")):
        if anchor.flipped:
            raise Barrier(f"{role} {describe(anchor.tensor)} is flipped")
    h, w = (dim.atoms for dim in p.image_hw)
    summed = set(p.summed)
    n = next((axis for axis in data.axes if axis and set(axis) == summed), ())
    if summed and (not n or n not in grad.axes):
        raise Barrier(
            f"the sum runs over {_where(p, data, grad)}, not over the images of both alone"
        )
    data_axes = _letters("data", data, {"H": h, "W": w, "N": n}, "C", ACTIVATION)
    r, s = p.filter_rs
    grad_axes = _letters("the gradient", grad, {"H": r, "W": s, "N": n}, "C", ACTIVATION)
    for role, axes, anchor in (("data", data_axes, data), ("the gradient", grad_axes, grad)):
        if p.inside and axes.index("N") != 0:
            raise Barrier(
                f"the convolution sums over axis {axes.index('N')} of {role}"
                f" {describe(anchor.tensor)}, as a forward one does: images are axis 0"
            )
    c, k = data.axes[data_axes.index("C")], grad.axes[grad_axes.index("C")]
    shared = [atom for atom in c if atom in k]
    g = len(shared)
    if list(k[:g]) != shared or list(c[:g]) != shared:
        minor = g and list(k[:g]) == shared and list(c[-g:]) == shared
        raise Barrier(
            MINOR_GROUPS
            if minor
            else "the groups are not the leading factor of the channels on both sides"
        )
    out = _placed(
        "the result", [dim.atoms for dim in p.dims],
        {"O": k, "I": c[g:], "H": p.out_hw[0], "W": p.out_hw[1]}, KERNEL,
    )  # fmt: skip
    attrs = ConvAttrs(
        strides=p.attrs.dilation,
        dilation=p.attrs.strides,
        padding=p.attrs.padding,
        groups=_number("groups", shared),
        grad_layout=grad_axes,
        data_layout=data_axes,
        kernel_layout=out,
        out_dtype=_out_dtype(var, data, grad),
        kernel_size=(_number("R", p.out_hw[0]), _number("S", p.out_hw[1])),
    )
    return wgrad_call(grad.tensor, data.tensor, attrs)


# ---- dgrad ---------------------------------------------------------------------------------------


def _data(p: Product, var: relax.Var, grad: Anchor, weight: Anchor) -> relax.Expr:
    r, s = p.filter_rs
    if grad.flipped:
        raise Barrier(f"the gradient {describe(grad.tensor)} is flipped")
    if weight.flipped != set(r + s) or not weight.mirrored:
        raise Barrier(f"not exactly the two axes of taps of {describe(weight.tensor)} are flipped")
    h, w = p.image_hw
    kept = {atom for dim in p.dims for atom in dim.atoms}
    shared = [atom for axis in grad.axes for atom in axis if atom in kept]
    shared = [atom for axis in weight.axes for atom in axis if atom in shared]
    inner = set(shared) | set(p.summed)
    k = next((axis for axis in weight.axes if axis and set(axis) == inner), ())
    if inner and not k:
        raise Barrier(f"the sum runs over {_where(p, grad, weight)}, not over the weight's filters")
    g = len(shared)
    if list(k[:g]) != shared:
        raise Barrier("the groups are not the leading factor of the weight's filters")
    grad_axes = _letters(
        "the gradient", grad, {"H": h.atoms, "W": w.atoms, "C": k}, "N", ACTIVATION
    )
    weight_axes = _letters("the weight", weight, {"H": r, "W": s, "O": k}, "I", KERNEL)
    o, taps_first = weight_axes.index("O"), weight_axes.index("H") == 0
    if o != (3 if taps_first else 0):
        raise Barrier(
            f"the sum runs over axis {o} of the weight {describe(weight.tensor)}: a forward"
            " convolution with a flipped weight"
        )
    n, c = grad.axes[grad_axes.index("N")], weight.axes[weight_axes.index("I")]
    out = _placed(
        "the result", [dim.atoms for dim in p.dims],
        {"N": n, "C": tuple(shared) + c, "H": p.out_hw[0], "W": p.out_hw[1]}, ACTIVATION,
    )  # fmt: skip
    rows = _axis_padding("rows", p, 0, h, _number("R", r))
    columns = _axis_padding("columns", p, 1, w, _number("S", s))
    attrs = ConvAttrs(
        strides=(rows[0], columns[0]),
        dilation=p.attrs.dilation,
        padding=(rows[1], columns[1], rows[2], columns[2]),
        groups=_number("groups", shared),
        grad_layout=grad_axes,
        data_layout=out,
        kernel_layout=weight_axes,
        out_dtype=_out_dtype(var, grad, weight),
    )
    return dgrad_call(grad.tensor, weight.tensor, var.ty.shape, attrs)


def _axis_padding(name: str, p: Product, axis: int, dim: Dim, taps: int) -> tuple[int, int, int]:
    """(stride, padding before, padding after) of the forward convolution along an axis."""
    full = p.attrs.dilation[axis] * (taps - 1)
    before = full - p.attrs.padding[axis] - dim.before
    after = full - p.attrs.padding[axis + 2] - dim.after
    # One row has no next one: any stride is its.
    stride = dim.step if dim.atoms else max(1, 1 - after)
    if before < 0:
        raise Barrier(
            f"{full - before} {name} of zeros before the gradient, and {full} are all that its taps"
            " reach"
        )
    if after <= -stride:
        raise Barrier(
            f"{full - after} {name} of zeros behind the gradient, and taps of stride {stride}"
            f" leave fewer than {full + stride}"
        )
    return stride, before, max(after, 0)


# ---- axes and letters ----------------------------------------------------------------------------


def _placed(role: str, axes: Sequence[Atoms], wanted: dict[str, Atoms], canonical: str) -> str:
    """The layout in which an axis has each letter's atoms.

    Axes of size 1 cannot be told apart, and need not: they get the letters without atoms, in
    canonical order.
    """
    if len(axes) != 4:
        raise Barrier(f"{role} has {len(axes)} axes, not 4")
    letters: dict[int, str] = {}
    for letter, atoms in wanted.items():
        if not atoms:
            continue
        found = [axis for axis, have in enumerate(axes) if have == atoms]
        if not found:
            raise Barrier(f"no axis of {role} is {_NAMES[letter]} ({letter}), whole and in order")
        letters[found[0]] = letter
    free = [letter for letter in canonical if not wanted[letter]]
    for axis, atoms in enumerate(axes):
        if axis not in letters:
            if atoms or not free:
                raise Barrier(f"axis {axis} of {role} is none of {canonical}")
            letters[axis] = free.pop(0)
    return "".join(letters[axis] for axis in range(4))


_NAMES = {
    "N": "the images", "C": "the channels", "H": "the rows", "W": "the columns",
    "O": "the filters", "I": "the input channels",
}  # fmt: skip


def _letters(role: str, anchor: Anchor, wanted: dict[str, Atoms], last: str, canonical: str) -> str:
    """`_placed` for an operand, of which the axis `last` is what the others leave."""
    rest = [axis for axis in anchor.axes if axis and axis not in wanted.values()]
    if len(rest) > 1:
        missing = [letter for letter, atoms in wanted.items() if atoms and atoms not in anchor.axes]
        names = ", ".join(_NAMES[letter] for letter in missing) or "one axis"
        raise Barrier(f"{names} of {role} {describe(anchor.tensor)}: no whole axis of it")
    return _placed(
        f"{role} {describe(anchor.tensor)}", anchor.axes,
        {**wanted, last: rest[0] if rest else ()}, canonical,
    )  # fmt: skip


def _where(p: Product, image: Anchor, weights: Anchor) -> str:
    """The axes over which a product sums, for a reason."""
    found = []
    for anchor in (image, weights):
        for axis, atoms in enumerate(anchor.axes):
            both = set(atoms) & set(p.summed)
            part = "" if both == set(atoms) else "a part of "
            if both:
                found.append(f"{part}axis {axis} of {describe(anchor.tensor)}")
    if set(p.summed) & set(p.out_hw[0] + p.out_hw[1]) or not found:
        found.append("the result's own pixels" if found else "what is in no operand")
    return " and ".join(found) if p.summed else "nothing"


def _number(name: str, atoms: Sequence[Atom]) -> int:
    size = size_of(atoms)
    if size[1]:
        raise Barrier(f"{name} is symbolic")
    return size[0]


def _out_dtype(var: relax.Var, *operands: Anchor) -> str | None:
    """None where the operands' dtype is the result's."""
    dtypes = {str(anchor.tensor.ty.dtype) for anchor in operands}
    return None if dtypes == {str(var.ty.dtype)} else str(var.ty.dtype)
