"""ATen's interpolation, adaptive pooling, borders and windows: each axis is resampled by itself.

What an axis of the result takes of the operand's is asked of PyTorch: the op, applied to an
identity matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .. import layers
from ..context import Context, shape_of
from ..moving import cut
from ..resampled import at_places, by_matrix, folded, padded
from ..weights import Array
from .call import Builder, Call
from .program import pytorch

op = relax.op
# Not 1: PyTorch's antialiased kernels are wrong for tensors whose layout that leaves open.
_BESIDE = 2
_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def ints(value: Any, count: int) -> list[int]:
    """A number for each axis, or the one for all of them."""
    values = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return values * count if len(values) == 1 else values


def _matrix(call: Call, size: int, place: int, of_axis: Any) -> Array:
    """(P, size): what the op makes of an identity matrix along an axis of pixels, at `place`.

    of_axis : the op's arguments after the tensor, which leave the other axes, of `_BESIDE`, alone.
    """
    torch = pytorch()
    rank = len(call.values[0].shape) - 2
    shape = [1, size, *[1] * rank]
    shape[2 + place] = size
    beside = [1, 1, *(1 if i == place else _BESIDE for i in range(rank))]
    unit = torch.eye(size, dtype=call.values[0].dtype).reshape(shape).repeat(beside)
    made = call.node.target(unit, *of_axis).movedim(2 + place, 2)
    return np.asarray(made.reshape(size, made.shape[2], -1)[..., 0].T.numpy())


def _interpolated(ctx: Context, call: Call) -> Any:
    """(x, sizes or None, [align_corners,] scales or None), of any rank and kind."""
    x, shape, given = call.args[0], shape_of(call.args[0]), list(call.args[1:])
    sizes, flags, scales = given[0], given[1:-1], given[-1]
    rank = len(shape) - 2
    for i in range(rank):
        alone = [_BESIDE] * rank
        alone[i] = call.shape[2 + i]
        by = None if scales is None else [scales[i] if j == i else 1.0 for j in range(rank)]
        matrix = _matrix(call, shape[2 + i], i, (None if sizes is None else alone, *flags, by))
        x = by_matrix(ctx, x, 2 + i, matrix)
    return x


def _adaptive_average_pool(rank: int) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        x, shape = call.args[0], shape_of(call.args[0])
        out = list(call.shape[-rank:])
        call.args[1]
        if len(shape) != rank + 2:
            raise ValueError(f"expected {rank + 2} axes, got shape {list(shape)}")
        if out == [1] * rank:
            return layers.global_average_pool(ctx, x)
        sizes = shape[2:]
        if rank > 1 and not any(s % o for s, o in zip(sizes, out, strict=True)):
            kernel = [s // o for s, o in zip(sizes, out, strict=True)]
            return layers.average_pool(ctx, x, kernel, kernel, [0] * (2 * rank))
        for i, (size, wanted) in enumerate(zip(sizes, out, strict=True)):
            alone = [_BESIDE] * rank
            alone[i] = wanted
            x = by_matrix(ctx, x, 2 + i, _matrix(call, size, i, (alone,)))
        return x

    return build


def _pad(ctx: Context, call: Call) -> Any:
    """(x, widths from the last axis on, mode, value): negative ones cut."""
    mode, value = "constant", call.arg(2, 0.0)
    if isinstance(value, str):
        mode, value = value, call.arg(3, 0.0)
    return _bordered(ctx, call, mode, value)


def _border(mode: str) -> Builder:
    """(x, widths): PyTorch's ops of one mode."""
    return lambda ctx, call: _bordered(ctx, call, mode, 0.0)


def _bordered(ctx: Context, call: Call, mode: str, value: Any) -> Any:
    x, given = call.args[0], ints(call.args[1], 1)
    rank = len(shape_of(x))
    widths = [(0, 0)] * rank
    for i in range(len(given) // 2):
        widths[rank - 1 - i] = (given[2 * i], given[2 * i + 1])
    for axis, (before, after) in enumerate(widths):
        size = shape_of(x)[axis]
        x = cut(ctx, x, axis, max(-before, 0), size - max(-after, 0))
    widths = [(max(before, 0), max(after, 0)) for before, after in widths]
    if mode != "constant":
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r} is not supported, only constant, {', '.join(_MODES)}")
        return padded(ctx, x, widths, _MODES[mode])
    return layers.framed(ctx, x, widths, float(value or 0.0))


def _unfold(ctx: Context, call: Call) -> Any:
    """(x, axis, size, step): windows along an axis, their elements last."""
    x, rank = call.args[0], len(shape_of(call.args[0]))
    axis, size, step = int(call.args[1]) % rank, int(call.args[2]), int(call.args[3])
    count = call.shape[axis]
    x = at_places(ctx, x, axis, [i * step + j for i in range(count) for j in range(size)])
    shape = shape_of(x)
    apart = ctx.emit(op.reshape(x, (*shape[:axis], count, size, *shape[axis + 1 :])))
    axes = [a for a in range(rank + 1) if a != axis + 1]
    return ctx.emit(op.permute_dims(apart, [*axes, axis + 1]))


def _im2col(ctx: Context, call: Call) -> Any:
    """(x, kernel, dilation, padding, stride): (N, C R S, windows)."""
    kernel, dilation, padding, stride = (ints(call.args[i], 2) for i in range(1, 5))
    n, c = shape_of(call.args[0])[:2]
    x = layers.framed(ctx, call.args[0], [(0, 0)] * 2 + [(p, p) for p in padding], 0.0)
    counts = []
    for i in range(2):
        size = shape_of(x)[2 + i]
        count = (size - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        counts.append(count)
        places = [r * dilation[i] + p * stride[i] for r in range(kernel[i]) for p in range(count)]
        x = at_places(ctx, x, 2 + i, places)
    apart = ctx.emit(op.reshape(x, (n, c, kernel[0], counts[0], kernel[1], counts[1])))
    return ctx.emit(op.reshape(op.permute_dims(apart, [0, 1, 2, 4, 3, 5]), call.shape))


def _col2im(ctx: Context, call: Call) -> Any:
    """(x, size, kernel, dilation, padding, stride): windows summed where they lay, `_im2col`'s
    transpose."""
    size, kernel, dilation, padding, stride = (ints(call.args[i], 2) for i in range(1, 6))
    return folded(ctx, call.args[0], size, kernel, dilation, padding * 2, stride)


_KINDS = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d",
          "bicubic2d")  # fmt: skip

RESIZING: dict[str, Builder] = {
    **{f"upsample_{kind}.vec": _interpolated for kind in _KINDS},
    **{f"_upsample_nearest_exact{rank}d.vec": _interpolated for rank in (1, 2, 3)},
    "_upsample_bicubic2d_aa.vec": _interpolated,
    "_upsample_bilinear2d_aa.vec": _interpolated,
    "adaptive_avg_pool1d.default": _adaptive_average_pool(1),
    "adaptive_avg_pool2d.default": _adaptive_average_pool(2),
    "adaptive_avg_pool3d.default": _adaptive_average_pool(3),
    "col2im.default": _col2im,
    "constant_pad_nd.default": _pad,
    "im2col.default": _im2col,
    "pad.default": _pad,
    "reflection_pad1d.default": _border("reflect"),
    "reflection_pad2d.default": _border("reflect"),
    "reflection_pad3d.default": _border("reflect"),
    "replication_pad1d.default": _border("replicate"),
    "replication_pad2d.default": _border("replicate"),
    "replication_pad3d.default": _border("replicate"),
    "unfold.default": _unfold,
}
"""ATen overload -> builder."""
