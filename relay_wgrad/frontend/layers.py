"""Layers of lines, images and volumes, with plain arguments: what the front ends parse into.

Tensors are (N, C, …), weights (K, C/groups, …), of transposed convolutions (C, K/groups, …).
Padding is before each axis, then after each.  A line is an image with one row; a volume's pooling
is two of images, along (H, W) and along D: a window's maximum is that of its slices' maxima, the
first of equal ones too, and its average is theirs, whatever is counted, as counts are products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..conventions.common import Axis, extent
from ..ir import const_like
from ..ops.algebra import FPROPS, TRANSPOSED
from .context import Context, shape_of
from .data_movement import broadcast, cut
from .resampling import padded

op = relax.op
Ints = Sequence[int]


def lifted(ctx: Context, line: Any) -> Any:
    """A line as an image with one row."""
    shape = shape_of(line)
    return ctx.emit(op.reshape(line, (*shape[:2], 1, *shape[2:])))


def flat(ctx: Context, image: Any) -> Any:
    """An image with one row as a line."""
    shape = shape_of(image)
    return ctx.emit(op.reshape(image, (*shape[:2], *shape[3:])))


def biased(ctx: Context, x: Any, bias: Any) -> Any:
    """x and a number more for each channel; None: x."""
    if bias is None:
        return x
    column = (1, *shape_of(bias), *(1,) * (len(shape_of(x)) - 2))
    return ctx.emit(op.add(x, ctx.emit(op.reshape(bias, column))))


def conv(
    ctx: Context, x: Any, weight: Any, bias: Any, strides: Ints, padding: Ints, dilation: Ints,
    groups: int,
) -> Any:  # fmt: skip
    """A convolution; its operators refuse what does not fit."""
    if len(strides) == 1:
        before, after = padding
        row = conv(
            ctx, lifted(ctx, x), lifted(ctx, weight), None, (1, *strides), (0, before, 0, after),
            (1, *dilation), groups,
        )  # fmt: skip
        return biased(ctx, flat(ctx, row), bias)
    made = FPROPS[len(strides)](x, weight, [*strides], [*padding], [*dilation], groups)
    return biased(ctx, ctx.emit(made), bias)


def conv_transpose(
    ctx: Context, x: Any, weight: Any, bias: Any, strides: Ints, dilation: Ints, groups: int,
    starts: Ints, totals: Ints,
) -> Any:  # fmt: skip
    """A transposed convolution: of the rows that its taps reach, which are (P-1) s + extent along
    an axis, `totals` rows from row `starts` on; rows that no tap reaches are zeros."""
    if len(strides) == 1:
        row = conv_transpose(
            ctx, lifted(ctx, x), lifted(ctx, weight), None, (1, *strides), (1, *dilation), groups,
            (0, *starts), (1, *totals),
        )  # fmt: skip
        return biased(ctx, flat(ctx, row), bias)
    axes = [
        Axis(pixels, extent(kernel, d), s, start, total)
        for pixels, kernel, d, s, start, total in zip(
            shape_of(x)[2:], shape_of(weight)[2:], dilation, strides, starts, totals, strict=True
        )
    ]
    if min(axis.size for axis in axes) < 1:
        raise ValueError(f"the output would be empty, its sizes {[axis.total for axis in axes]}")
    ends = [axis.padding for axis in axes]
    more = [axis.size + sum(pad) - axis.full for axis, pad in zip(axes, ends, strict=True)]
    padding = [*(before for before, _ in ends), *(after for _, after in ends)]
    transposed = TRANSPOSED[len(strides)]
    made = ctx.emit(transposed(x, weight, [*strides], padding, more, [*dilation], groups))
    return biased(ctx, framed(ctx, made, [(0, 0)] * 2 + [axis.zeros for axis in axes], 0.0), bias)


def framed(ctx: Context, x: Any, widths: Sequence[tuple[int, int]], value: float) -> Any:
    """x with a number before and after it along each axis; by concatenation, which has gradients
    of every order."""
    for axis, sides in enumerate(widths):
        parts = [x]
        for at, size in enumerate(sides):
            if size:
                shape = [*shape_of(x)]
                shape[axis] = size
                border = ctx.full(tuple(shape), value, str(x.ty.dtype))
                parts = [border, *parts] if at == 0 else [*parts, border]
        x = ctx.emit(op.concat(parts, axis)) if len(parts) > 1 else x
    return x


def bordered(
    ctx: Context, x: Any, widths: Sequence[tuple[int, int]], mode: str = "constant",
    value: float = 0.0,
) -> Any:  # fmt: skip
    """x with (before, after) more elements along each axis, negative ones of which are cut.

    mode : "constant", the value, or of what is inside by `numpy.pad`'s word.

    Raises ValueError where nothing is left.
    """
    for axis, (before, after) in enumerate(widths):
        size, low, high = shape_of(x)[axis], max(-before, 0), max(-after, 0)
        if low + high and low + high >= size:
            given = [before, after]
            raise ValueError(f"a border of {given} leaves nothing of axis {axis}, of {size}")
        x = cut(ctx, x, axis, low, size - high)
    widths = [(max(before, 0), max(after, 0)) for before, after in widths]
    if mode != "constant":
        return padded(ctx, x, widths, mode)
    return framed(ctx, x, widths, value)


# ---- pools ---------------------------------------------------------------------------------------


def _with_ceil(sizes: Ints, kernel: Ints, strides: Ints, padding: Ints) -> list[int]:
    """Padding with what rounding up adds after: a window must still start on data, or on padding
    that precedes it."""
    rank, ends = len(sizes), []
    for i, size in enumerate(sizes):
        before, after = padding[i], padding[i + rank]
        out = math.ceil((size + before + after - kernel[i]) / strides[i]) + 1
        if (out - 1) * strides[i] >= size + before:
            out -= 1
        ends.append(max((out - 1) * strides[i] + kernel[i] - size - before, after))
    return [*padding[:rank], *ends]


def _check_window(sizes: Ints, kernel: Ints, padding: Ints) -> None:
    """Raises ValueError for a window of pooling that does not fit even once."""
    rank = len(sizes)
    if any(n + padding[i] + padding[i + rank] < kernel[i] for i, n in enumerate(sizes)):
        window, image = ("x".join(map(str, values)) for values in (kernel, sizes))
        raise ValueError(
            f"a {window} window does not fit a {image} image with padding {tuple(padding)}: the"
            " image is too small"
        )


Pool = Callable[[Any, Ints, Ints, Ints], Any]


def planes(shape: Any, kernel: int, stride: int, padding: Any) -> tuple[Any, ...]:
    """The images (N, C, H, W) as which a volume (N, C, D, H, W) is pooled along H and W, by the
    window's part along H.

    Where windows tile H those of all planes do, one under another, and channels stay an axis, which
    may be the last in memory; else the planes are channels.
    """
    n, c, d, h, w = shape
    tiled = kernel == stride and not any(padding) and h % kernel == 0
    return (n, c, d * h, w) if tiled else (n, c * d, h, w)


def _any_rank(
    ctx: Context, x: Any, kernel: Ints, strides: Ints, padding: Ints, of_images: Pool
) -> Any:
    """A pooling by one, or two, of images (data, kernel, strides, padding)."""
    rank = len(kernel)
    if rank == 2:
        return of_images(x, kernel, strides, padding)
    if rank == 1:
        before, after = padding
        return flat(
            ctx, of_images(lifted(ctx, x), (1, *kernel), (1, *strides), (0, before, 0, after))
        )
    n, c, d, *_ = shape_of(x)
    pads = (*padding[1:3], *padding[4:])
    shape = planes(shape_of(x), kernel[1], strides[1], pads[::2])
    made = of_images(ctx.emit(op.reshape(x, shape)), kernel[1:], strides[1:], pads)
    p, q = math.prod(shape_of(made)[1:3]) // (c * d), shape_of(made)[3]
    columns = ctx.emit(op.reshape(made, (n, c, d, p * q)))
    out = of_images(columns, (kernel[0], 1), (strides[0], 1), (padding[0], 0, padding[3], 0))
    return ctx.emit(op.reshape(out, (n, c, shape_of(out)[2], p, q)))


def whole_padding(x: Any, kernel: Ints, strides: Ints, padding: Ints, ceil_mode: Any) -> list[int]:
    """The padding with what rounding up adds.  Raises ValueError for a window that does not fit."""
    shape = shape_of(x)
    if len(shape) != 2 + len(kernel):
        raise ValueError(f"expected {2 + len(kernel)} axes, got shape {list(shape)}")
    _check_window(shape[2:], kernel, padding)
    return _with_ceil(shape[2:], kernel, strides, padding) if ceil_mode else [*padding]


def max_pool(
    ctx: Context, x: Any, kernel: Ints, strides: Ints, padding: Ints, ceil_mode: Any = False
) -> Any:
    """The maximum of each window; padding never wins."""
    whole = whole_padding(x, kernel, strides, padding, ceil_mode)
    return _any_rank(ctx, x, kernel, strides, whole, lambda *given: _max_pool2d(ctx, *given))


def _max_pool2d(ctx: Context, x: Any, kernel: Ints, strides: Ints, padding: Ints) -> Any:
    """In a form whose gradient is right.

    topi's pool_grad does not check a pixel's window index against the output's size: where
    outputs·stride < kernel it reads the next row's first window and counts pixels twice.  One
    output per axis has no use for its stride; more get more padding and are cut again.
    """
    size, stride, pad = shape_of(x)[2:], list(strides), list(padding)
    outputs = [(size[i] + pad[i] + pad[i + 2] - kernel[i]) // stride[i] + 1 for i in range(2)]
    cuts = []
    for i in range(2):
        if outputs[i] == 1:
            stride[i] = max(stride[i], kernel[i])
        elif outputs[i] * stride[i] < kernel[i]:
            enough = -(-kernel[i] // stride[i])
            pad[i + 2] += (enough - outputs[i]) * stride[i]
            cuts.append((2 + i, outputs[i]))
    out = ctx.emit(op.nn.max_pool2d(x, tuple(kernel), tuple(stride), tuple(pad)))
    for axis, count in cuts:
        out = ctx.emit(relax.TupleGetItem(ctx.emit(op.split(out, [count], axis)), 0))
    return out


def average_pool(
    ctx: Context, x: Any, kernel: Ints, strides: Ints, padding: Ints, ceil_mode: Any = False,
    include_padding: bool = False,
) -> Any:  # fmt: skip
    """The mean of each window; what rounding up adds counts neither as data nor as padding."""
    rank = len(kernel)
    whole = whole_padding(x, kernel, strides, padding, ceil_mode)

    def of_images(x: Any, kernel: Ints, strides: Ints, pads: Ints) -> Any:
        made = op.nn.avg_pool2d(
            x, tuple(kernel), tuple(strides), tuple(pads), count_include_pad=include_padding
        )
        return ctx.emit(made)

    out = _any_rank(ctx, x, kernel, strides, whole, of_images)
    if not include_padding or whole == list(padding):
        return out
    ratio: Any = 1.0
    for i, size in enumerate(shape_of(x)[2:]):
        start = np.arange(shape_of(out)[2 + i]) * strides[i]
        end = np.minimum(start + kernel[i], size + padding[i] + padding[i + rank])
        ratio = np.multiply.outer(ratio, kernel[i] / (end - start))
    return ctx.emit(op.multiply(out, ctx.const(ratio[None, None])))


def global_average_pool(ctx: Context, x: Any) -> Any:
    """The mean over every axis after the channels'."""
    return ctx.emit(op.mean(x, list(range(2, len(shape_of(x)))), keepdims=True))


# ---- dropout, random truths ----------------------------------------------------------------------


def masked(ctx: Context, x: Any, rate: float) -> Any:
    """x with elements left out at this rate."""
    if rate == 0.0:
        return x
    if rate == 1.0:
        return ctx.emit(op.multiply(x, const_like(0.0, x)))
    if not 0.0 < rate < 1.0:
        raise ValueError(f"a dropout rate of {rate} is not between 0 and 1")
    name = f"dropout_mask_{len(ctx.masks)}"
    spec, mask = ctx.input(name, "mask", shape_of(x), ctx.options.dtype, keep=1.0 - rate)
    ctx.masks.append((spec, mask))
    return ctx.emit(op.multiply(x, mask))


def drawn_truths(ctx: Context, name: str, chance: Any, shape: tuple[Any, ...]) -> Any:
    """Truths with the probability that a tensor has, by which there is no gradient; or that
    probability, where the option `random` is "off"."""
    stopped = ctx.emit(op.grad.no_grad(chance))
    if ctx.options.random == "off":
        ctx.note(f"{name} is its mean")
        return broadcast(ctx, stopped, shape)
    number = ctx.draw(name, shape, str(chance.ty.dtype), ("uniform", 0.0, 1.0))
    return ctx.emit(op.less(number, stopped))
