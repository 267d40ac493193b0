"""What all frameworks' conventions come to: per axis, which rows of one full result are kept.

A transposed convolution of P pixels with a kernel of extent e = dilation*(R-1) + 1 and the stride s
reaches F = (P-1)*s + e rows.  Every framework gives some T of them from some row t on, where rows
before 0 and from F on are zeros.  They differ in the names that they give to t and T, nothing else:

    pads (b, a) and output padding o     t = b,  T = F - b - a + o
    the gradient of "SAME" to size T     t = max((P-1)*s + e - T, 0) // 2

In a `ConvProblem` that is padding before of t, H = T rows, and any padding after that leaves P
pixels: P = (H + t + after - e)//s + 1, for which there are s values of H + after.  Of these one is
taken, so that one function has one problem: t again if it is among them, for libraries that pad
both ends alike, and otherwise the least.  What no problem has, rows of zeros before row 0 or more
than s-1 of them after row F, is kept beside it as `Conversion.around`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..attrs import as_int, pair
from ..layouts import ACTIVATION, KERNEL, is_permutation, permutation, to_layout
from ..problem import DTYPE_BYTES, ConvKind, ConvProblem
from ..rules import Rules, out_size

Pair = tuple[int, int]
Quad = tuple[int, int, int, int]
Layouts = tuple[str, str, str]  # (data, weight, grad), of the forward convolution

NO_PAD: Quad = (0, 0, 0, 0)


@dataclass(frozen=True)
class Conversion:
    """A framework's call as one problem.

    problem : kind FPROP for a convolution, DGRAD for a transposed one; its layouts are the
        framework's memory.
    around : (top, left, bottom, right), zeros around the result of a transposed convolution.
    turned : whether the weight's taps are in the reverse order along both axes.
    """

    problem: ConvProblem
    around: Quad = NO_PAD
    turned: bool = False

    @property
    def pad(self) -> Quad:
        """Deprecated: the former name of `around`."""
        return _formerly_pad("Conversion", self.around)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of the call's input, in its layout."""
        return self.problem.shape(self.problem.roles[0])

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Of the weight as the framework has it."""
        return self.problem.shape("weight")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of the call's result, zeros included."""
        p = self.problem
        n, c, h, w = p.canonical_shape(p.roles[2])
        top, left, bottom, right = self.around
        padded = (n, c, h + top + bottom, w + left + right)
        return to_layout(padded, ACTIVATION, p.layout(p.roles[2]))

    def to_oihw(self, weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The framework's weight as the forward convolution's (K, C/groups, R, S): a view.

        Raises ValueError if it is not of `weight_shape`.
        """
        _fits("the weight", weight, self.weight_shape)
        out = weight.transpose(permutation(self.problem.kernel_layout, KERNEL))
        return out[:, :, ::-1, ::-1] if self.turned else out

    def from_oihw(self, weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The way back: (K, C/groups, R, S) as the framework wants it, a view.

        Raises ValueError for another shape.
        """
        _fits("the weight", weight, self.problem.canonical_shape("weight"))
        out = weight[:, :, ::-1, ::-1] if self.turned else weight
        return out.transpose(permutation(KERNEL, self.problem.kernel_layout))


@dataclass(frozen=True)
class Written:
    """A framework's arguments for a problem, and what has to be put around the call.

    arguments : what the reader of this framework takes, shapes and dtype included.
    around : (top, left, bottom, right): zeros, or where negative rows and columns to cut.  Of a
        convolution's input before the call, of a transposed one's result after it.

    Weights go from one framework to another by the forward convolution's order:
    `target.from_oihw(source.to_oihw(weight))` with the conversions of both.
    """

    arguments: dict[str, Any]
    around: Quad = NO_PAD

    @property
    def call(self) -> dict[str, Any]:
        """The arguments without those that tensors tell: what the framework itself is called with.

        `torch.nn.functional.conv_transpose2d(x, weight, **written.call)`; of Keras the layer's
        arguments, of ONNX the node's attributes.
        """
        return {name: value for name, value in self.arguments.items() if name not in _OF_TENSORS}

    @property
    def pad(self) -> Quad:
        """Deprecated: the former name of `around`."""
        return _formerly_pad("Written", self.around)


_OF_TENSORS = frozenset(
    ("input_shape", "weight_shape", "x_shape", "w_shape", "lhs_shape", "rhs_shape", "dtype")
)


def _formerly_pad(of: str, around: Quad) -> Quad:
    message = f"{of}.pad is now {of}.around, as in cudnn.Descriptors"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return around


def _fits(what: str, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> None:
    if tuple(array.shape) != shape:
        raise ValueError(f"{what} must have shape {shape}, got {tuple(array.shape)}")


# ---- one axis --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One axis of a transposed convolution: T rows from row t on of the F that taps reach."""

    pixels: int
    extent: int
    stride: int
    start: int
    total: int

    @property
    def full(self) -> int:
        """F."""
        return (self.pixels - 1) * self.stride + self.extent

    @property
    def zeros(self) -> Pair:
        """Rows of zeros that no problem has: before row 0, and after row F + s - 1."""
        first = max(-self.start, 0)
        return first, max(self.start + self.total - self.full - (self.stride - 1), 0)

    @property
    def size(self) -> int:
        """H: the rows without these zeros."""
        return self.total - sum(self.zeros)

    @property
    def padding(self) -> Pair:
        """(before, after) of the problem."""
        before = max(self.start, 0)
        return before, trailing(self.size, self.pixels, self.extent, self.stride, before)


def trailing(size: int, pixels: int, extent: int, stride: int, before: int) -> int:
    """Padding after, for P pixels of H: `before` if that gives P pixels, else the least that does.

    >>> trailing(8, 4, 3, 2, 1), trailing(8, 4, 3, 2, 0)
    (1, 1)
    """
    if out_size(size, 2 * before, extent, stride, 1) == pixels:
        return before
    return max((pixels - 1) * stride + extent - size - before, 0)


def extent(kernel: int, dilation: int) -> int:
    """Rows from a kernel's first tap to its last one, both included."""
    return dilation * (kernel - 1) + 1


# ---- problems --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """What a convolution and its transpose have alike, read and checked by `window`."""

    kernel: Pair
    strides: Pair
    dilation: Pair
    groups: int
    padding: Quad = NO_PAD  # of a transposed convolution rows say it

    @property
    def extents(self) -> Pair:
        return extent(self.kernel[0], self.dilation[0]), extent(self.kernel[1], self.dilation[1])


def window(
    op: str, kernel: Any, strides: Any, dilation: Any, groups: Any, names: Sequence[str]
) -> Window:
    """Reads kernel, strides, dilation and groups, which the framework calls `names`.

    Raises TypeError for what is no integer, ValueError for a value below 1 or a wrong count.
    """
    pairs = [
        least(op, name, pair(op, name, value), 1)
        for name, value in zip(names, (kernel, strides, dilation), strict=False)
    ]
    count = least(op, names[3], as_int(op, names[3], groups), 1)
    return Window(pairs[0], pairs[1], pairs[2], count)


def least(op: str, name: str, values: Any, low: int) -> Any:
    """The values, none of which is below `low`; else a ValueError."""
    return Rules(op).least(name, values, low)


def sizes(op: str, name: str, shape: Any, count: int = 4) -> tuple[int, ...]:
    """A shape of `count` positive sizes."""
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
        raise TypeError(f"{op}: {name} must be a sequence of {count} sizes, got {shape!r}")
    if len(shape) != count:
        raise ValueError(f"{op}: {name} must have {count} sizes, got {len(shape)}: {list(shape)}")
    if None in shape:
        raise TypeError(f"{op}: {name}'s sizes must be known, got {tuple(shape)}")
    return tuple(least(op, name, [as_int(op, name, v) for v in shape], 1))


def choice(op: str, name: str, value: Any, known: Sequence[str]) -> str:
    """One of the `known` words; else a TypeError or a ValueError that lists them."""
    if not isinstance(value, str):
        raise TypeError(f"{op}: {name} must be a string, got {value!r}")
    if value not in known:
        raise ValueError(f"{op}: {name} must be one of {', '.join(known)}, got {value!r}")
    return value


def image(shape: Sequence[int], layout: str) -> tuple[int, int, Pair]:
    """(N, channels, (height, width)) of an activation in a layout."""
    n, channels, h, w = to_layout(shape, layout, ACTIVATION)
    return n, channels, (h, w)


def convolution(
    op: str, names: Mapping[str, str], data: Sequence[int], weight: Sequence[Any], win: Window,
    pads: Quad, layouts: Layouts, dtype: str,
) -> Conversion:  # fmt: skip
    """A convolution; the padding after is brought to the form above.

    names : what the framework calls the tensors; data : (N, C, H, W); weight : (K, C/groups or
    None, R, S).

    Raises ValueError where they do not fit, as `rules.Rules` has it.
    """
    n, c, h, w = data
    Rules(op, names).fit(replace(win, padding=pads), data, weight, None)
    problem = _problem(op, ConvKind.FPROP, n, (c, weight[0]), (h, w), win, pads, layouts, dtype)
    return normal(Conversion(_checked(op, problem)))


def transposed(
    op: str, names: Mapping[str, str], data: Sequence[int], weight: Sequence[int], win: Window,
    starts: Pair, totals: Pair, layouts: Layouts, dtype: str, turned: bool = False,
) -> Conversion:  # fmt: skip
    """A transposed convolution; rows as in `Axis`.

    names : what the framework calls the forward convolution's tensors; data : (N, K, P, Q), the
    call's; weight : (K, C/groups, R, S).

    Raises ValueError where they do not fit, or nothing is left of the result.
    """
    n, k, *pixels = data
    channels = weight[1] * win.groups
    Rules(op, names).fit(win, None, weight, (n, k, None, None))
    axes = [Axis(pixels[i], win.extents[i], win.strides[i], starts[i], totals[i]) for i in (0, 1)]
    for axis, name in zip(axes, ("height", "width"), strict=True):
        if axis.total < 1:
            raise ValueError(f"{op}: the output would be empty, its {name} {axis.total}")
        if axis.size < 1:
            raise ValueError(
                f"{op}: no tap reaches the output, whose {name} starts at row {axis.start} of"
                f" {axis.full}"
            )
    (top, bottom), (left, right) = (axis.padding for axis in axes)
    problem = _problem(
        op, ConvKind.DGRAD, n, (channels, weight[0]), (axes[0].size, axes[1].size), win,
        (top, left, bottom, right), layouts, dtype,
    )  # fmt: skip
    _checked(op, problem)
    (above, below), (before, after) = (axis.zeros for axis in axes)
    return Conversion(problem, (above, before, below, after), turned)


def _problem(
    op: str, kind: ConvKind, n: int, channels: Pair, size: Pair, win: Window, padding: Quad,
    layouts: Layouts, dtype: str,
) -> ConvProblem:  # fmt: skip
    choice(op, "dtype", dtype, tuple(DTYPE_BYTES))
    c, k = channels
    return ConvProblem(
        kind, n, c, *size, k, *win.kernel,
        strides=win.strides, padding=padding, dilation=win.dilation, groups=win.groups,
        data_layout=layouts[0], kernel_layout=layouts[1], grad_layout=layouts[2],
        data_dtype=dtype, weight_dtype=dtype, grad_dtype=dtype,
    )  # fmt: skip


def _checked(op: str, problem: ConvProblem) -> ConvProblem:
    try:
        return problem.check()
    except ValueError as error:
        raise ValueError(f"{op}: {error}") from error


# ---- the way back ----------------------------------------------------------------------------


def plain_conversion(op: str, what: Any, kind: ConvKind) -> Conversion:
    """The conversion that a `to_…` function is given; a plain problem has nothing around it.

    Raises TypeError for anything else; ValueError for a problem of another kind, of symbolic size,
    of several dtypes, or that does not fit.
    """
    if isinstance(what, ConvProblem):
        what = Conversion(what)
    if not isinstance(what, Conversion):
        raise TypeError(f"{op}: expected a Conversion or a ConvProblem, got {what!r}")
    p = what.problem
    if p.kind is not kind:
        raise ValueError(f"{op}: the problem must be a {kind.value}, got {p.kind.value}: {p}")
    if not p.is_static:
        raise ValueError(f"{op}: all sizes must be known, got {p}")
    if len({p.data_dtype, p.weight_dtype, p.grad_dtype}) > 1:
        raise ValueError(f"{op}: all tensors must be of one dtype, got {p}")
    for role in ("data", "weight", "grad"):
        letters = KERNEL if role == "weight" else ACTIVATION
        if not is_permutation(p.layout(role), letters):
            raise ValueError(f"{op}: {role}'s layout must permute {letters}, got {p.layout(role)}")
    p.check()
    return what


def axes_of(found: Conversion) -> tuple[Axis, Axis]:
    """Both axes of a transposed convolution, zeros included."""
    p = found.problem
    made = [
        Axis(
            (p.p, p.q)[i],
            extent((p.r, p.s)[i], p.dilation[i]),
            p.strides[i],
            p.padding[i] - found.around[i],
            (p.h, p.w)[i] + found.around[i] + found.around[2 + i],
        )
        for i in (0, 1)
    ]
    return made[0], made[1]


def in_layouts(found: Conversion, layouts: Layouts) -> Conversion:
    """The same computation on tensors in other memory orders."""
    problem = replace(
        found.problem, data_layout=layouts[0], kernel_layout=layouts[1], grad_layout=layouts[2]
    )
    return replace(found, problem=problem)


def normal(found: Conversion) -> Conversion:
    """The form that this package's readers give; the same computation."""
    p = found.problem
    if p.kind is ConvKind.DGRAD:
        axes = axes_of(found)
        (top, bottom), (left, right) = (axis.padding for axis in axes)
        (above, below), (before, after) = (axis.zeros for axis in axes)
        problem = replace(p, h=axes[0].size, w=axes[1].size, padding=(top, left, bottom, right))
        return replace(found, problem=problem, around=(above, before, below, after))
    ends = [
        trailing(
            (p.h, p.w)[i], (p.p, p.q)[i], extent((p.r, p.s)[i], p.dilation[i]), p.strides[i],
            p.padding[i],
        )
        for i in (0, 1)
    ]  # fmt: skip
    top, left, _, _ = p.padding
    return replace(found, problem=replace(p, padding=(top, left, ends[0], ends[1])))
