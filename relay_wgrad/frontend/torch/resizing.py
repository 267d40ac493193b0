"""ATen's interpolation, adaptive pooling, borders and windows: each axis is resampled by itself.

What an axis of an interpolation takes of the operand's is asked of PyTorch: the op, applied to an
identity matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from .. import layers
from ..context import Context, shape_of
from ..resampling import adaptive_matrix, at_places, by_matrix, folded
from ..weights import Array
from .call import Builder, Call, ints
from .layers import batched
from .names import op_of
from .program import pytorch

op = relax.op
# Not 1: PyTorch's antialiased kernels are wrong for tensors whose layout that leaves open.
_BESIDE = 2
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def interpolation(
    name: str, before: Sequence[int], after: Sequence[int], flags: Sequence[Any],
    scales: Sequence[Any], dtype: Any,
) -> list[Array]:  # fmt: skip
    """(P, size) for each axis of pixels: what an op of ATen makes of an identity matrix along it.

    name : the op's; it takes (x, sizes, flags…, a scale for each axis…).
    """
    torch, found, rank = pytorch(), [], len(before)
    for i, (size, wanted) in enumerate(zip(before, after, strict=True)):
        alone = [i == j for j in range(rank)]
        unit = torch.eye(size, dtype=dtype).reshape([1, size, *(size if a else 1 for a in alone)])
        unit = unit.repeat([1, 1, *(1 if a else _BESIDE for a in alone)])
        sizes = [wanted if a else _BESIDE for a in alone]
        by = [scale if a else None for a, scale in zip(alone, scales, strict=True)]
        made = getattr(torch.ops.aten, name).default(unit, sizes, *flags, *by).movedim(2 + i, 2)
        found.append(np.asarray(made.reshape(size, wanted, -1)[..., 0].T.numpy()))
    return found


def along(ctx: Context, x: Any, matrices: Sequence[Array]) -> Any:
    """x with each of its last axes resampled by a matrix."""
    first = len(shape_of(x)) - len(matrices)
    for i, matrix in enumerate(matrices):
        x = by_matrix(ctx, x, first + i, matrix)
    return x


def _interpolated(ctx: Context, call: Call) -> Any:
    """(x, sizes or None, [align_corners,] scales or None), of any rank and kind."""
    x, before, after = call.args[0], shape_of(call.args[0])[2:], call.shape[2:]
    _, *flags, scales = call.args[1:]
    name = op_of(call.node).removesuffix(".vec")
    scales = scales or [None] * len(before)
    return along(ctx, x, interpolation(name, before, after, flags, scales, call.values[0].dtype))


def _adaptive_average_pool(rank: int) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        x, shape = call.args[0], shape_of(call.args[0])
        out = list(call.shape[-rank:])
        call.args[1]
        if out == [1] * rank:
            return layers.global_average_pool(ctx, x)
        sizes = shape[2:]
        if rank > 1 and not any(s % o for s, o in zip(sizes, out, strict=True)):
            kernel = [s // o for s, o in zip(sizes, out, strict=True)]
            return layers.average_pool(ctx, x, kernel, kernel, [0] * (2 * rank))
        return along(ctx, x, list(map(adaptive_matrix, sizes, out)))

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
    if mode not in _MODES:
        raise ValueError(f"mode {mode!r} is not supported, only {', '.join(_MODES)}")
    return layers.bordered(ctx, x, widths, _MODES[mode], float(value or 0.0))


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
    "adaptive_avg_pool1d.default": batched(1, _adaptive_average_pool(1)),
    "adaptive_avg_pool2d.default": batched(2, _adaptive_average_pool(2)),
    "adaptive_avg_pool3d.default": batched(3, _adaptive_average_pool(3)),
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
