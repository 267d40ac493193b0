"""cuDNN: descriptors, and what its K and C mean.

cuDNN has no transposed convolution.  It is `cudnnConvolutionBackwardData`, and all descriptors are
those of the forward convolution: x is its input (N, C, H, W), y its output (N, K, P, Q), and the
filter (K, C/groups, R, S), stored KCRS (`CUDNN_TENSOR_NCHW`) or KRSC (`CUDNN_TENSOR_NHWC`).  So a
transposed convolution from 256 to 128 channels has a filter of K = 256 and C = 128: dy has K
channels, dx has C.  Taps are not turned: `CUDNN_CROSS_CORRELATION`.

Padding is the same at both ends of an axis; the size of dx says the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..attrs import pair
from ..layouts import KERNEL, one_order, to_layout
from ..problem import ConvKind, ConvProblem, symmetric
from . import common
from .common import NO_PAD, Conversion, Layouts, Pair, Quad

FUNCTIONS = {
    ConvKind.FPROP: "cudnnConvolutionForward",
    ConvKind.DGRAD: "cudnnConvolutionBackwardData",
    ConvKind.WGRAD: "cudnnConvolutionBackwardFilter",
}
FORMATS: dict[str, Layouts] = {layout: one_order(layout) for layout in ("NCHW", "NHWC")}
FILTERS = {"NCHW": "KCRS", "NHWC": "KRSC"}
_KINDS = {name: kind for kind, name in FUNCTIONS.items()}
_NAMES = ("R and S of w", "stride", "dilation", "groups")
_TENSORS = {"data": "x", "weight": "w", "grad": "y"}


@dataclass(frozen=True)
class Descriptors:
    """What a call of cuDNN is told.

    function : `cudnnConvolutionForward`, `…BackwardData` or `…BackwardFilter`.
    x, y : dimensions of the tensor descriptors (N, C, H, W) and (N, K, P, Q), in this order
        whatever the format is; dx and dy have them too.
    w : dimensions of the filter descriptor, (K, C/groups, R, S) in this order.
    format : "NCHW" or "NHWC", of the tensors and of the filter.
    pad, stride, dilation : of the convolution descriptor, (height, width).
    around : (top, left, bottom, right): what x is padded with before the call, and dx after it,
        where negative numbers cut.  Of 'same' with an odd kernel and stride 2 it is (0, 0, -1, -1):
        dx has a row and a column that are to be cut.
    """

    function: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    format: str = "NCHW"
    pad: Pair = (0, 0)
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    groups: int = 1
    dtype: str = "float32"
    around: Quad = NO_PAD

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """The filter as it is in memory: KCRS or KRSC."""
        return to_layout(self.w, KERNEL, FORMATS[self.format][1])


def to_descriptors(found: Any, format: str | None = None) -> Descriptors:  # noqa: A002
    """Descriptors for a conversion or a problem of any of the three kinds.

    `format`: that of the problem's data where it is NHWC, otherwise NCHW, if not given.  Where the
    problem's layouts are others, tensors have to be permuted: `from_descriptors` has cuDNN's.

    Raises TypeError or ValueError for what is no problem with known sizes of one dtype.
    """
    op = "to cuDNN"
    problem = found.problem if isinstance(found, Conversion) else found
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"{op}: expected a Conversion or a ConvProblem, got {found!r}")
    found = common.normal(common.plain_conversion(op, found, problem.kind))
    if format is None:
        format = "NHWC" if problem.data_layout == "NHWC" else "NCHW"  # noqa: A001
    common.choice(op, "format", format, tuple(FORMATS))
    p = found.problem
    even = symmetric(p)
    before = [a - b for a, b in zip(p.padding, even.padding, strict=True)]
    if p.kind is ConvKind.DGRAD:
        before = [zeros - cut for zeros, cut in zip(found.around, before, strict=True)]
    return Descriptors(
        FUNCTIONS[p.kind], even.canonical_shape("data"), p.canonical_shape("weight"),
        p.canonical_shape("grad"), format, (even.padding[0], even.padding[1]), p.strides,
        p.dilation, p.groups, p.data_dtype, (before[0], before[1], before[2], before[3]),
    )  # fmt: skip


def from_descriptors(what: Descriptors) -> Conversion:
    """The problem that a call solves, `around` included, in cuDNN's layouts.

    Raises TypeError or ValueError naming the field, the rule and both values.
    """
    if not isinstance(what, Descriptors):
        raise TypeError(f"cuDNN: expected Descriptors, got {what!r}")
    op = common.choice("cuDNN", "function", what.function, tuple(_KINDS))
    kind = _KINDS[op]
    x, w, y = (common.sizes(op, name, getattr(what, name)) for name in ("x", "w", "y"))
    win = common.window(op, w[2:], what.stride, what.dilation, what.groups, _NAMES)
    pad = common.least(op, "pad", pair(op, "pad", what.pad), 0)
    layouts = FORMATS[common.choice(op, "format", what.format, tuple(FORMATS))]
    forward = common.convolution(op, _TENSORS, x, w, win, (*pad, *pad), layouts, what.dtype)
    fits = forward.problem.canonical_shape("grad")
    if fits != y:
        raise ValueError(f"{op}: y must be what x and w make, got {list(y)} and {list(fits)}")
    around = what.around
    if len(around) != 4 or (kind is not ConvKind.DGRAD and min(around) < 0):
        raise ValueError(f"{op}: around must be 4 values, of x not negative, got {around}")
    if kind is ConvKind.DGRAD:
        starts = (pad[0] - around[0], pad[1] - around[1])
        totals = (x[2] + around[0] + around[2], x[3] + around[1] + around[3])
        return common.transposed(op, _TENSORS, y, w, win, starts, totals, layouts, what.dtype)
    size = (x[2] - around[0] - around[2], x[3] - around[1] - around[3])
    common.least(op, "x within around", size, 1)
    padding = (
        pad[0] + around[0], pad[1] + around[1], pad[0] + around[2], pad[1] + around[3],
    )  # fmt: skip
    inner = (x[0], x[1], *size)
    found = common.convolution(op, _TENSORS, inner, w, win, padding, layouts, what.dtype)
    return replace(found, problem=found.problem.with_kind(kind))
