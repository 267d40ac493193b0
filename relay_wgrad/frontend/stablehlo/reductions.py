"""Sums, extrema and products along axes and in windows, and windows' gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...dtypes import FLOATS
from ...ir import constant
from ..context import Context, shape_of
from ..resampling import by_matrix
from .data_movement import sliced
from .elementwise import OPERATIONS, apply, kind_of
from .operation import Builder, Step, cast
from .reader import body
from .tensors import Tensor, of_array, of_expr, reshape, reshaped

op = relax.op
_FOLDED = 1 << 20  # elements that are summed here
_AXES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (op.sum, np.sum), "maximum": (op.max, np.max), "minimum": (op.min, np.min),
    "multiply": (op.prod, np.prod), "and": (op.min, np.min), "or": (op.max, np.max),
}  # fmt: skip
_LAYOUTS = {(2, 3): "NCHW", (1, 2): "NHWC"}


def _neutral(kind: str, x: Tensor, dtype: str) -> bool:
    """Whether a first value changes nothing: of that many as there are bits, so by its dtype."""
    value = x.number()
    if value is None:
        return False
    if kind in ("and", "or"):
        return bool(value) == (kind == "and") if dtype == "bool" else False
    if (neutral := OPERATIONS[kind].neutral) is not None:
        return bool(value == neutral)
    if dtype in FLOATS:
        return bool(value == (-math.inf if kind == "maximum" else math.inf))
    if dtype == "bool":
        return bool(value) == (kind == "minimum")
    limits = np.iinfo(dtype)
    return bool(value == (limits.min if kind == "maximum" else limits.max))


def _region(step: Step, region: int, wanted: Sequence[str]) -> str:
    kind = body(step.operation, region)
    if kind not in wanted:
        raise ValueError(f"by {kind or 'a function'}: only {', '.join(wanted)} are supported")
    return kind


def _reduce(ctx: Context, step: Step) -> Tensor:
    if len(step.operands) != 2:
        raise ValueError("of several tensors at once is not supported")
    x, first = step.operands
    kind = _region(step, 0, list(_AXES))
    if kind in ("and", "or") and x.dtype != "bool":
        raise ValueError(f"by {kind} of {x.dtype} is not supported")
    axes = step.integers("dimensions")
    if all(x.shape[a] == 1 for a in axes):
        made = reshape(ctx, x, step.shape)
    elif x.known and math.prod(x.shape) <= _FOLDED:
        made = of_array(np.asarray(_AXES[kind][1](x.array(), axis=tuple(axes))), x.dtype)
        made.part = made.part.astype(x.part.dtype)
    else:
        given = x.full(ctx)
        given = cast(ctx, given, "int8") if x.dtype == "bool" else given
        made = of_expr(cast(ctx, ctx.emit(_AXES[kind][0](given, axes)), x.dtype))
    if _neutral(kind, first, x.dtype):
        return made
    whole = reshape(ctx, first, (1,) * len(step.shape)) if first.rank else first
    return apply(ctx, OPERATIONS[kind], [made, whole], step.shape, step.dtype)


# ---- windows -------------------------------------------------------------------------------------


class Windows:
    """Windows along each axis: how long, how far apart, and the zeros around and between."""

    def __init__(self, step: Step, rank: int) -> None:
        ones = [1] * rank
        self.size = step.integers("window_dimensions")
        self.strides = step.integers("window_strides", ones)
        self.base = step.integers("base_dilations", ones)
        self.dilation = step.integers("window_dilations", ones)
        widths = step.integers("padding", [0] * (2 * rank))
        self.low, self.high = widths[0::2], widths[1::2]

    def under(self, x: Tensor, value: float) -> Tensor:
        """What a border of this value had been put around, if there is one: then it is ours."""
        around = x.padded
        if around is None or around.value != value or any(b > 1 for b in self.base):
            return x
        if any(w < 0 for w in (*self.low, *self.high)):
            return x
        self.low = [a + b for a, b in zip(self.low, around.low, strict=True)]
        self.high = [a + b for a, b in zip(self.high, around.high, strict=True)]
        self.base = [i + 1 for i in around.interior]
        return around.source

    @property
    def axes(self) -> list[int]:
        """Those along which there is more than a copy."""
        given = (self.size, self.strides, self.base, self.low, self.high)
        return [a for a, v in enumerate(zip(*given, strict=True)) if v != (1, 1, 1, 0, 0)]

    def layout(self, rank: int) -> str:
        """Of images, where these are plain windows of images; else "" ."""
        axes = self.axes
        widths = [*self.low, *self.high]
        plain = max(self.base) == 1 and min(widths) >= 0
        found = [pair for pair in _LAYOUTS if set(axes) <= set(pair)] if rank == 4 else []
        return _LAYOUTS[found[0]] if found and axes and plain else ""

    def of_image(self, layout: str) -> dict[str, Any]:
        a, b = next(pair for pair, name in _LAYOUTS.items() if name == layout)
        return {
            "pool_size": (self.size[a], self.size[b]),
            "strides": (self.strides[a], self.strides[b]),
            "padding": (self.low[a], self.low[b], self.high[a], self.high[b]),
            "dilation": (self.dilation[a], self.dilation[b]),
            "layout": layout,
        }

    def matrix(self, axis: int, size: int, out: int) -> Any:
        """(out, size): how often an element is in a window."""
        place = np.arange(size) * self.base[axis] + self.low[axis]
        tap = np.arange(self.size[axis]) * self.dilation[axis]
        at = np.arange(out)[:, None] * self.strides[axis] + tap
        return (at[:, :, None] == place).sum(1).astype("float64")


def _reduce_window(ctx: Context, step: Step) -> Tensor:
    if len(step.operands) != 2:
        raise ValueError("of several tensors at once is not supported")
    x, first = step.operands
    kind = _region(step, 0, ("add", "maximum", "minimum"))
    if not _neutral(kind, first, x.dtype):
        raise ValueError(f"{kind} that begins with another value than its own")
    windows = Windows(step, x.rank)
    if kind != "add":
        return _extrema(ctx, x, windows, kind, step)
    if x.known and math.prod(x.shape) <= _FOLDED:
        array = x.array()
        for axis in windows.axes:
            matrix = windows.matrix(axis, x.shape[axis], step.shape[axis])
            array = np.moveaxis(np.tensordot(matrix, array, (1, axis)), 0, axis)
        return of_array(array.astype(x.part.dtype), x.dtype)
    x = windows.under(x, 0.0)
    if x.dtype not in FLOATS:
        raise ValueError(f"sums of {x.dtype} in windows are not supported")
    layout = windows.layout(x.rank)
    made = x.full(ctx)
    if layout and set(windows.dilation) == {1}:
        given = windows.of_image(layout)
        made = ctx.emit(op.nn.avg_pool2d(made, **given, count_include_pad=True))
        made = ctx.emit(op.multiply(made, constant(math.prod(given["pool_size"]), x.dtype)))
        if shape_of(made) == step.shape:
            return of_expr(made)
        made = x.full(ctx)
    for axis in windows.axes:
        made = by_matrix(ctx, made, axis, windows.matrix(axis, x.shape[axis], step.shape[axis]))
    return of_expr(made)


def _extrema(ctx: Context, x: Tensor, windows: Windows, kind: str, step: Step) -> Tensor:
    if kind_of(x.dtype) != "f":
        raise ValueError(f"{kind} of {x.dtype} in windows is not supported")
    lowest = -math.inf if kind == "maximum" else math.inf
    x = windows.under(x, lowest)
    if max(windows.base) > 1:
        raise ValueError("of elements that are apart (base_dilations) is not supported")
    made, sign = x.full(ctx), kind == "minimum"
    made = ctx.emit(op.negative(made)) if sign else made
    layout = windows.layout(x.rank)
    if layout:
        made = ctx.emit(op.nn.max_pool2d(made, **windows.of_image(layout)))
    else:
        for axis in windows.axes:
            made = _largest(ctx, made, windows, axis, step.shape[axis])
    return of_expr(ctx.emit(op.negative(made)) if sign else made)


def _largest(ctx: Context, x: Any, windows: Windows, axis: int, out: int) -> Any:
    """The largest of each window along one axis: its taps one after another."""
    low, high, rank = windows.low[axis], windows.high[axis], len(shape_of(x))
    widths = [0] * (2 * rank)
    widths[2 * axis : 2 * axis + 2] = [max(low, 0), max(high, 0)]
    if any(widths):
        x = ctx.emit(op.nn.pad(x, widths, pad_value=-math.inf))
    best = None
    for tap in range(windows.size[axis]):
        begin = tap * windows.dilation[axis] + max(-low, 0)
        end = begin + (out - 1) * windows.strides[axis] + 1
        bounds = [(begin, end) if a == axis else (0, n) for a, n in enumerate(shape_of(x))]
        strides = [windows.strides[axis] if a == axis else 1 for a in range(rank)]
        taken = sliced(ctx, x, bounds, strides)
        best = taken if best is None else ctx.emit(op.maximum(best, taken))
    return best


def _select_and_scatter(ctx: Context, step: Step) -> Tensor:
    """(x, dy, first value): dy added where each window's first maximum, or minimum, is."""
    x, dy, first = step.operands
    least = _region(step, 0, ("GE", "LE")) == "LE"
    _region(step, 1, ("add",))
    if first.number() != 0:
        raise ValueError("that begins with another value than 0")
    windows = Windows(step, x.rank)
    around = x.padded
    source = windows.under(x, math.inf if least else -math.inf)
    if source is not x and (min(*windows.low, *windows.high) < 0 or max(windows.base) > 1):
        windows, source = Windows(step, x.rank), x
    axes = [a for a, n in enumerate(windows.size) if n > 1 or windows.strides[a] > 1]
    axes = axes or [x.rank - 1]
    if len(axes) > 2:
        raise ValueError(f"windows along {len(axes)} axes are not supported")
    if any((windows.low[a], windows.high[a]) != (0, 0) for a in range(x.rank) if a not in axes):
        raise ValueError("a border along an axis without windows is not supported")
    given = source.full(ctx)
    given = ctx.emit(op.negative(given)) if least else given
    made = of_expr(_of_maxima(ctx, given, dy.full(ctx), windows, axes))
    if source is x or around is None:
        return made
    widths = [w for pair in zip(around.low, around.high, strict=True) for w in pair]
    wide = of_expr(ctx.emit(op.nn.pad(made.full(ctx), widths)))
    wide.padded = type(around)(made, around.low, around.high, around.interior, 0.0)
    return wide


def _of_maxima(ctx: Context, x: Any, dy: Any, windows: Windows, axes: list[int]) -> Any:
    """The gradient of maxima, as an image's in whose layout the axes are, or as a plane's."""
    shape, rank = shape_of(x), len(shape_of(x))
    layout = windows.layout(rank)
    if layout:
        given = windows.of_image(layout)
        return ctx.emit(op.grad.max_pool2d_backward(dy, x, **given))
    rest = [a for a in range(rank) if a not in axes]
    order = [*rest, *axes]
    a, b = (axes * 2)[:2]

    def plane(value: Any) -> Any:
        sizes = shape_of(value)
        if order != sorted(order):
            value = ctx.emit(op.permute_dims(value, order))
        last = (sizes[a], sizes[b] if len(axes) > 1 else 1)
        return reshaped(ctx, value, (math.prod(sizes[i] for i in rest), 1, *last))

    def pair(values: list[int], other: int) -> tuple[int, int]:
        return values[a], values[b] if len(axes) > 1 else other

    low, high = pair(windows.low, 0), pair(windows.high, 0)
    made = ctx.emit(
        op.grad.max_pool2d_backward(
            plane(dy), plane(x), pool_size=pair(windows.size, 1),
            strides=pair(windows.strides, 1), padding=(*low, *high),
            dilation=pair(windows.dilation, 1),
        )
    )  # fmt: skip
    made = reshaped(ctx, made, [shape[i] for i in order])
    if order == sorted(order):
        return made
    return ctx.emit(op.permute_dims(made, [order.index(i) for i in range(rank)]))


REDUCING: dict[str, Builder] = {
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "select_and_scatter": _select_and_scatter,
}
"""Operation -> builder."""
