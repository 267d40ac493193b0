"""Which operator of the family a convolution of StableHLO is: arithmetic alone, no TVM.

Along each axis, with `D` the left operand's dilation, `s` the stride, `r` the right one's dilation
and `low` the padding before, element i of lhs meets tap k of rhs in element o of the result where

    D i + low = s o + r k.

The family has H = stride P + dilation R - top of its three tensors' indices: data's has no factor,
and both others are on the other side.  So whichever of the three has no factor may be data, if one
of the others is read backwards where its sign is wrong.  JAX's data gradient, dilated and with a
reversed weight, so has its result as data; its weight gradient has lhs as data, and the forward
stride as rhs' dilation; a transposed convolution's weight gradient has rhs as data, backwards.

Of the axes without pixels lhs has (b, f), rhs (f, o) and the result (b, o); data has (N, C), weight
(C, K) and grad (N, K).  Either of the other two may be the weight, so there are six readings in
all, which compute the same.  `Reading.likely` says which of them the writer meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...problem import ConvKind, ConvProblem

TENSORS = ("lhs", "rhs", "out")
_LETTERS = {"lhs": ("b", "f"), "rhs": ("f", "o"), "out": ("b", "o")}
_KINDS = {"data": ConvKind.DGRAD, "weight": ConvKind.WGRAD, "grad": ConvKind.FPROP}
_USUAL = {
    "data": ("NCHW", "NHWC", "NCDHW", "NDHWC"),
    "grad": ("NCHW", "NHWC", "NCDHW", "NDHWC"),
    "weight": ("OIHW", "HWIO", "OHWI", "OIDHW", "DHWIO", "ODHWI"),
}
_SPATIAL = {2: "HW", 3: "DHW"}


@dataclass(frozen=True)
class Convolution:
    """What StableHLO says.

    shapes : of lhs, rhs and the result.
    numbers : what each axis is: "b" images, "f" the axis of lhs and rhs that is summed, "o" rhs'
        other one and the result's, digits for pixels.
    low : padding before; that after is in the result's size.
    reverse : whether the window is read backwards.
    groups, images : feature_group_count and batch_group_count.
    """

    shapes: tuple[tuple[int, ...], ...]
    numbers: tuple[str, str, str]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    reverse: tuple[bool, ...]
    groups: int = 1
    images: int = 1
    dtypes: tuple[str, str, str] = ("float32",) * 3

    @property
    def rank(self) -> int:
        return len(self.stride)

    def lifted(self) -> Convolution:
        """With two axes of pixels at least: new ones, of one pixel, come before the others."""
        if self.rank >= 2:
            return self
        more = 2 - self.rank
        shapes, numbers = [], []
        for shape, text in zip(self.shapes, self.numbers, strict=True):
            at = text.index("0") if self.rank else len(text)
            moved = text.replace("0", str(more))
            new = "".join(map(str, range(more)))
            numbers.append(moved[:at] + new + moved[at:])
            shapes.append((*shape[:at], *(1,) * more, *shape[at:]))
        one, zero = (1,) * more, (0,) * more
        return replace(
            self, shapes=tuple(shapes), numbers=(numbers[0], numbers[1], numbers[2]),
            stride=(*one, *self.stride), low=(*zero, *self.low),
            lhs_dilation=(*one, *self.lhs_dilation), rhs_dilation=(*one, *self.rhs_dilation),
            reverse=(*(False,) * more, *self.reverse),
        )  # fmt: skip

    def size(self, tensor: int, letter: str) -> int:
        return self.shapes[tensor][self.numbers[tensor].index(letter)]

    def spread(self) -> Convolution:
        """The same of lhs with its dilation's zeros between its elements."""
        shape = list(self.shapes[0])
        for axis, dilation in enumerate(self.lhs_dilation):
            at = self.numbers[0].index(str(axis))
            shape[at] = (shape[at] - 1) * dilation + 1
        return replace(self, shapes=(tuple(shape), *self.shapes[1:]), lhs_dilation=(1,) * self.rank)


@dataclass(frozen=True)
class Reading:
    """One reading as an operator of the family.

    roles : of lhs, rhs and the result.
    flips : of each tensor, the axes of pixels that are read backwards, by number.
    moves : of each tensor, None, or the letters (from, to) of the axes between which its groups
        change, from where StableHLO has them to where the family has them.
    crop : of each axis of pixels, what of data no tap reaches: (before, after).
    spread : whether lhs has zeros put between its elements first.
    """

    problem: ConvProblem
    roles: tuple[str, str, str]
    flips: tuple[tuple[int, ...], ...]
    moves: tuple[tuple[str, str] | None, ...]
    crop: tuple[tuple[int, int], ...]
    spread: bool = False

    @property
    def kind(self) -> ConvKind:
        return self.problem.kind

    def cost(self, flips: Sequence[Sequence[int]] | None = None) -> float:
        """What is copied for it, in copies of activations."""
        total = 4.0 * self.spread
        for role, flipped, move in zip(self.roles, flips or self.flips, self.moves, strict=True):
            each = 0.5 if role == "weight" else 3.0
            total += each * (bool(flipped) + (move is not None))
        return total

    def crops(self, numbers: str) -> tuple[list[int], list[int]]:
        """What of data is left out, before and after, by its axes, which `numbers` has."""
        low, high = [0] * len(numbers), [0] * len(numbers)
        for axis, (before, after) in enumerate(self.crop):
            at = numbers.index(str(axis))
            low[at], high[at] = before, after
        return low, high

    def likely(self, arguments: Sequence[bool]) -> float:
        """How much speaks for this reading: usual layouts, a weight that is an argument or a
        gradient that is none, a weight that is smaller than what it slides over.

        arguments : whether lhs and rhs are arguments of the program.
        """
        p = self.problem
        votes = float(sum(p.layout(role) in _USUAL[role] for role in self.roles))
        for role, given in zip(self.roles, arguments, strict=False):
            votes += 2.0 * (role == "weight" and given)
            votes += 2.0 * (role == "grad" and not given and self.kind is ConvKind.WGRAD)
        taps, pixels = math.prod(p.taps), math.prod(p.pixels)
        return votes + 2.0 * (taps < pixels) + 1.0 * (taps == pixels)


def readings(conv: Convolution) -> list[Reading]:
    """All readings of a convolution with two or three axes of pixels; none where no element of lhs
    meets a tap, so that the result is zero."""
    found = [r for data in range(3) for r in _of_data(conv, data)]
    if any(_factor(conv, 0, axis) > 1 for axis in range(conv.rank)):
        found += [replace(r, spread=True) for r in _of_data(conv.spread(), 0)]
    return found


def _factor(conv: Convolution, tensor: int, axis: int) -> int:
    factors = (conv.lhs_dilation, conv.rhs_dilation, conv.stride)
    return factors[tensor][axis] if conv.size(tensor, str(axis)) > 1 else 1


def _of_data(conv: Convolution, data: int) -> Iterator[Reading]:
    """The two readings in which this tensor is data."""
    if any(_factor(conv, data, axis) > 1 for axis in range(conv.rank)):
        return
    for weight in range(3):
        if weight != data:
            made = _read(conv, data, weight, 3 - data - weight)
            if made is not None:
                yield made


def _read(conv: Convolution, data: int, weight: int, grad: int) -> Reading | None:
    tensors = {"data": data, "weight": weight, "grad": grad}
    flips: list[list[int]] = [[], [], []]
    axes = []
    for axis in range(conv.rank):
        top, backwards = _aligned(conv, axis, data)
        for tensor in backwards:
            flips[tensor].append(axis)
        sizes = {role: conv.size(t, str(axis)) for role, t in tensors.items()}
        axes.append(
            _padded(
                sizes["data"], sizes["weight"], sizes["grad"], top,
                stride=(conv.lhs_dilation, conv.rhs_dilation, conv.stride)[grad][axis],
                dilation=(conv.lhs_dilation, conv.rhs_dilation, conv.stride)[weight][axis],
            )
        )  # fmt: skip
    if any(axis is None for axis in axes):
        return None
    known = [axis for axis in axes if axis is not None]
    letters = {role: set(_LETTERS[TENSORS[t]]) for role, t in tensors.items()}
    (n,) = letters["data"] & letters["grad"]
    (c,) = letters["data"] & letters["weight"]
    (k,) = letters["weight"] & letters["grad"]
    # Where groups are, and where the family has them.
    groups = max(conv.groups, conv.images)
    now = {0: "f" if conv.groups > 1 else "b", 1: "o", 2: "o"}
    wanted = {data: c, weight: k, grad: k}
    moves = [(now[t], wanted[t]) if groups > 1 and now[t] != wanted[t] else None for t in range(3)]

    def total(tensor: int, letter: str) -> int:
        size = conv.size(tensor, letter)
        move = moves[tensor]
        if move is not None:
            size = size // groups if letter == move[0] else size * groups
        return size

    spatial = _SPATIAL[conv.rank]
    named = {
        "data": {n: "N", c: "C"}, "weight": {k: "O", c: "I"}, "grad": {n: "N", k: "C"},
    }  # fmt: skip
    layouts = {
        role: "".join(spatial[int(x)] if x.isdigit() else named[role][x] for x in conv.numbers[t])
        for role, t in tensors.items()
    }
    roles = ["", "", ""]
    for role, tensor in tensors.items():
        roles[tensor] = role
    sizes_of_data = [
        conv.size(data, str(a)) - sum(known[a].crop) for a in range(conv.rank)
    ]  # fmt: skip
    problem = ConvProblem.from_shapes(
        _KINDS[roles[2]],
        (total(data, n), total(data, c), *sizes_of_data),
        (total(weight, k), 0, *(conv.size(weight, str(a)) for a in range(conv.rank))),
        strides=tuple(a.stride for a in known),
        padding=(*(a.before for a in known), *(a.after for a in known)),
        dilation=tuple(a.dilation for a in known),
        groups=groups,
        data_layout=layouts["data"], kernel_layout=layouts["weight"], grad_layout=layouts["grad"],
        data_dtype=conv.dtypes[data], weight_dtype=conv.dtypes[weight],
        grad_dtype=conv.dtypes[grad],
    )  # fmt: skip
    return Reading(
        problem, (roles[0], roles[1], roles[2]), tuple(map(tuple, flips)), tuple(moves),
        tuple(a.crop for a in known),
    )  # fmt: skip


def _aligned(conv: Convolution, axis: int, data: int) -> tuple[int, list[int]]:
    """(top, tensors read backwards) for data = stride grad + dilation weight - top.

    Each index has a factor in lhs - rhs - out + low = 0; the others' must have the sign that
    data's has not.  An index of one element is 0 whatever its factor.
    """
    sizes = [conv.size(t, str(axis)) for t in range(3)]
    factors = [conv.lhs_dilation[axis], -conv.rhs_dilation[axis], -conv.stride[axis]]
    rest = conv.low[axis]
    if conv.reverse[axis]:
        rest += factors[1] * (sizes[1] - 1)
        factors[1] = -factors[1]
    backwards = []
    for tensor in range(3):
        if tensor != data and sizes[tensor] > 1 and factors[tensor] * factors[data] > 0:
            rest += factors[tensor] * (sizes[tensor] - 1)
            backwards.append(tensor)
    return (rest if factors[data] > 0 else -rest), backwards


@dataclass(frozen=True)
class _Axis:
    stride: int
    dilation: int
    before: int
    after: int
    crop: tuple[int, int]


def _padded(
    size: int, taps: int, pixels: int, top: int, stride: int, dilation: int
) -> _Axis | None:
    """Padding of the forward convolution, and what it leaves out of data; None for all of it.

    Behind, any padding will do that makes so many pixels: the same as before where that does.
    """
    crop = max(-top, 0)
    size, top = size - crop, max(top, 0)
    least = (pixels - 1) * stride + dilation * (taps - 1) + 1 - size - top
    most = least + stride - 1
    if most < 0 and pixels == 1:  # one row has no next one: any stride is its
        stride, most = stride - most, 0
    cut = max(-most, 0)
    if size - cut < 1:
        return None
    if most < 0:
        return _Axis(stride, dilation, top, 0, (crop, cut))
    after = top if least <= top <= most else max(least, 0)
    return _Axis(stride, dilation, top, after, (crop, 0))
