"""AOTAutograd's backward ops: poolings, resampling, parts of tensors.

In a graph that autograd has made already nothing is differentiated again, so a row says what the op
is and needs no gradient.  What resamples an axis by a matrix has the transpose as its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...ir import constant
from ...ops.auxiliary import LOWEST
from .. import layers
from ..context import Context, shape_of
from ..resampling import adaptive_matrix, at_places, border_places, by_matrix, chosen_matrix
from ..weights import Array
from .call import Builder, Call, ints
from .layers import batched, max_pool, pool_window
from .math import identity
from .program import pytorch
from .resizing import along, interpolation
from .shapes import filled

op = relax.op
# ---- maxima --------------------------------------------------------------------------------------


def _max_pool(rank: int) -> Builder:
    """(y, places of the maxima): an operand of one batch axis and `rank` pixel axes."""

    def build(ctx: Context, call: Call) -> tuple[Any, Any]:
        kernel, strides, padding, dilation = pool_window(call, 1, rank)
        made = max_pool(rank)(ctx, call)
        indices = None
        if rank == 2 and _are_wanted(call):
            if len(call.shape) != 4:
                raise ValueError("places of the maxima of an image without a batch")
            indices = _places(ctx, call, kernel, strides, padding, dilation)
        return made, indices

    return build


def _are_wanted(call: Call) -> bool:
    """Whether the places of the maxima go elsewhere than to the pooling's own backward op."""
    return any(
        user.args[1] == 1 and any("backward" not in str(u.target) for u in user.users)
        for user in call.node.users
    )


def _places(
    ctx: Context, call: Call, kernel: list[int], strides: list[int], padding: list[int],
    dilation: list[int],
) -> Any:  # fmt: skip
    """The number h W + w of each window's first maximum: its taps are gone through in order."""
    x, (h, w), out = call.args[0], shape_of(call.args[0])[2:], call.shape[2:]
    need = [(out[i] - 1) * strides[i] + (kernel[i] - 1) * dilation[i] + 1 for i in range(2)]
    after = [max(need[i] - n - padding[i], padding[i]) for i, n in enumerate((h, w))]
    widths = [0, 0, 0, 0, padding[0], after[0], padding[1], after[1]]
    rows, columns = np.arange(-padding[0], h + after[0]), np.arange(-padding[1], w + after[1])
    numbers = (rows[:, None] * w + columns)[None, None]
    if any(widths):
        x = ctx.emit(op.nn.pad(x, widths, pad_value=LOWEST[str(x.ty.dtype)]))
    best = places = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            begin = [i * dilation[0], j * dilation[1]]
            end = [b + (out[k] - 1) * strides[k] + 1 for k, b in enumerate(begin)]
            tap = ctx.emit(op.strided_slice(x, [2, 3], begin, end, strides))
            number = numbers[:, :, begin[0] : end[0] : strides[0], begin[1] : end[1] : strides[1]]
            here = constant(number, "int64")
            if best is None:
                best, places = tap, ctx.emit(op.broadcast_to(here, call.shape))
                continue
            larger = ctx.emit(op.logical_or(op.greater(tap, best), op.isnan(tap)))
            places = ctx.emit(op.where(larger, here, places))
            best = ctx.emit(op.where(larger, tap, best))
    return places


def _max_pool2d_backward(ctx: Context, call: Call) -> Any:
    """(dy, x, kernel, stride, padding, dilation, ceil mode, places): found again from x."""
    window = pool_window(call, 2, 2)
    call.arg(7)
    return _of_maxima(ctx, call.args[0], call.args[1], *window, call.args[6])


def _of_maxima(
    ctx: Context, dy: Any, x: Any, kernel: list[int], strides: list[int], padding: list[int],
    dilation: list[int], ceil: Any,
) -> Any:  # fmt: skip
    made = op.grad.max_pool2d_backward(dy, x, kernel, strides, padding * 2, dilation, bool(ceil))
    return ctx.emit(made)


def _max_pool3d_backward(ctx: Context, call: Call) -> Any:
    """As that of images, of which a volume's is two: along (H, W), then along D."""
    kernel, strides, padding, dilation = pool_window(call, 2, 3)
    call.arg(7)
    dy, x = call.args[0], call.args[1]
    n, c, d, *_ = shape_of(x)
    p = shape_of(dy)
    shape = layers.planes(shape_of(x), kernel[1], strides[1], [padding[1]])
    planes = ctx.emit(op.reshape(x, shape))
    pads = padding[1:] * 2
    pooled = layers.max_pool(ctx, planes, kernel[1:], strides[1:], pads, call.args[6])
    columns = ctx.emit(op.reshape(pooled, (n, c, d, math.prod(p[3:]))))
    grad = ctx.emit(op.reshape(dy, (n, c, p[2], math.prod(p[3:]))))
    along_d = [kernel[0], 1], [strides[0], 1], [padding[0], 0], [dilation[0], 1]
    of_columns = _of_maxima(ctx, grad, columns, *along_d, call.args[6])
    grad = ctx.emit(op.reshape(of_columns, shape_of(pooled)))
    in_planes = kernel[1:], strides[1:], padding[1:], dilation[1:]
    made = _of_maxima(ctx, grad, planes, *in_planes, call.args[6])
    return ctx.emit(op.reshape(made, shape_of(x)))


# ---- what resamples each axis by a matrix --------------------------------------------------------


def _transposed(ctx: Context, dy: Any, matrices: Sequence[Array]) -> Any:
    """The transposes of matrices (P, H), one for each of the last axes."""
    return along(ctx, dy, [np.ascontiguousarray(matrix.T) for matrix in matrices])


def _average_pool_backward(rank: int) -> Builder:
    """(dy, x, kernel, stride, padding, ceil mode, whether padding counts, divisor)."""

    def build(ctx: Context, call: Call) -> Any:
        kernel = ints(call.args[2], rank)
        strides, padding = ints(call.args[3] or kernel, rank), ints(call.args[4], rank)
        counted, divisor = bool(call.args[6]), call.arg(7)
        call.args[5]
        sizes, outs = shape_of(call.args[1])[-rank:], shape_of(call.args[0])[-rank:]
        matrices = [
            _averages(*axis, counted, divisor is not None)
            for axis in zip(sizes, outs, kernel, strides, padding, strict=True)
        ]
        made = _transposed(ctx, call.args[0], matrices)
        return made if divisor is None else ctx.emit(op.divide(made, ctx.const(divisor)))

    return build


def _averages(
    size: int, out: int, kernel: int, stride: int, padding: int, counted: bool, plain: bool
) -> Array:
    """(out, size): each window's mean; `counted`: with its padding; `plain`: its sum."""
    start = (np.arange(out) * stride - padding)[:, None]
    end = np.minimum(start + kernel, size + padding)
    here = np.arange(size)
    inside = (here >= start) & (here < end)
    count = (end - start) if counted else inside.sum(1, keepdims=True)
    return np.asarray(inside / (1 if plain else count))


def _adaptive_backward(rank: int) -> Builder:
    """(dy, x)."""

    def build(ctx: Context, call: Call) -> Any:
        dy, x = call.args[0], call.args[1]
        sizes, outs = shape_of(x)[-rank:], shape_of(dy)[-rank:]
        if all(out == 1 for out in outs):
            share = ctx.emit(op.multiply(dy, ctx.const(1 / math.prod(sizes))))
            return ctx.emit(op.broadcast_to(share, shape_of(x)))
        return _transposed(ctx, dy, list(map(adaptive_matrix, sizes, outs)))

    return build


def _resampled(rank: int, backward: bool) -> Builder:
    """(x, sizes[, x's shape], [align_corners,] scales…): one matrix for each axis, by PyTorch."""

    def build(ctx: Context, call: Call) -> Any:
        schema = call.node.target._schema
        given = [call.arg(i, a.default_value) for i, a in enumerate(schema.arguments)]
        before = [int(v) for v in (given[2] if backward else call.values[0].shape)][-rank:]
        flags, scales = given[2 + backward : -rank], given[-rank:]
        name = schema.name.removeprefix("aten::").removesuffix("_backward")
        size = ints(call.args[1], rank)
        matrices = interpolation(name, before, size, flags, scales, pytorch().float64)
        return (_transposed if backward else along)(ctx, call.args[0], matrices)

    return build


def _own_resampled(ctx: Context, call: Call) -> Any:
    """Of `relay_wgrad.torch.upsampling`: (x, ATen's name, sizes, align_corners, scales)."""
    x, name, size, flag, scales = call.args[:5]
    return along(ctx, x, _matrices(name, shape_of(x), size, flag, scales))


def _own_resampled_backward(ctx: Context, call: Call) -> Any:
    """Its gradient: (dy, ATen's name, sizes, x's shape, align_corners, scales)."""
    dy, name, size, shape, flag, scales = call.args[:6]
    return _transposed(ctx, dy, _matrices(name, shape, size, flag, scales))


def _matrices(name: str, shape: Any, size: Any, flag: Any, scales: Any) -> list[Array]:
    rank = len(size)
    before = [int(v) for v in shape][-rank:]
    flags = [] if "nearest" in name else [flag]
    given = [*scales] or [None] * rank
    made = interpolation(name, before, ints(size, rank), flags, given, pytorch().float64)
    return list(made)


def _border_backward(mode: str) -> Builder:
    """(dy, x, widths from the last axis on)."""

    def build(ctx: Context, call: Call) -> Any:
        widths = ints(call.args[2], 1)
        sizes = shape_of(call.args[1])[-(len(widths) // 2) :]
        matrices = []
        for i, size in enumerate(reversed(sizes)):
            pads: Any = (widths[2 * i], widths[2 * i + 1])
            if min(pads) < 0:
                raise ValueError(f"negative widths {list(pads)} are not supported")
            matrices.append(chosen_matrix(border_places(size, pads, mode), size))
        return _transposed(ctx, call.args[0], matrices[::-1])

    return build


# ---- parts of tensors ----------------------------------------------------------------------------


def _slice_backward(ctx: Context, call: Call) -> Any:
    """(dy, sizes, axis, start, stop, step): dy between zeros."""
    sizes = [int(v) for v in call.args[1]]
    axis = int(call.args[2]) % len(sizes)
    step, size = int(call.args[5]), sizes[axis]
    places = range(*slice(call.args[3], call.args[4], step).indices(size))
    dy = call.args[0]
    if not len(places):
        return ctx.emit(op.zeros(sizes, call.dtype))
    if step > 1:
        return by_matrix(ctx, dy, axis, chosen_matrix(np.asarray(places), size).T)
    return _between_zeros(ctx, dy, axis, places.start, size - places.stop)


def _select_backward(ctx: Context, call: Call) -> Any:
    """(dy, sizes, axis, index)."""
    sizes = [int(v) for v in call.args[1]]
    axis = int(call.args[2]) % len(sizes)
    index = int(call.args[3]) % sizes[axis]
    shape = [1 if i == axis else s for i, s in enumerate(sizes)]
    part = ctx.emit(op.reshape(call.args[0], shape))
    return _between_zeros(ctx, part, axis, index, sizes[axis] - index - 1)


def _lain(call: Call) -> list[int]:
    """x's axes in the order in which they lie in memory, the outermost first."""
    value = call.values[0]
    order = sorted(range(value.dim()), key=lambda axis: (-value.stride(axis), axis))
    if not value.permute(order).is_contiguous():
        raise ValueError("of a tensor with gaps or repetitions in memory")
    return order


def _memory(call: Call, at: int) -> Array:
    """(sizes, strides, offset) from `at` on: each element's place among x's in memory."""
    sizes, strides = ([int(v) for v in call.args[i]] for i in (at, at + 1))
    steps = [np.arange(n) * s for n, s in zip(sizes, strides, strict=True)]
    value = call.values[0]
    given = call.arg(at + 2, call.setting("storage_offset"))
    # An offset is from the beginning of the memory, of which x, a view, may be a part.
    offset = np.asarray(0 if given is None else int(given) - value.storage_offset())
    places = np.asarray(sum(np.ix_(*steps), offset) if steps else offset).reshape(-1)
    if places.size and not (places.min() >= 0 and places.max() < value.numel()):
        raise ValueError("of elements that its operand, a view, does not have")
    return places


def _strided(ctx: Context, call: Call) -> Any:
    """(x, sizes, strides, offset)."""
    x = ctx.emit(op.permute_dims(call.args[0], _lain(call)))
    flat = ctx.emit(op.reshape(x, (math.prod(shape_of(x)),)))
    taken = at_places(ctx, flat, 0, _memory(call, 1).tolist())
    return ctx.emit(op.reshape(taken, call.shape))


def _strided_scatter(ctx: Context, call: Call) -> Any:
    """(x, part, sizes, strides, offset): x with the part in the place of those elements."""
    order, places = _lain(call), _memory(call, 2)
    x = ctx.emit(op.permute_dims(call.args[0], order))
    count = math.prod(shape_of(x))
    if len(set(places.tolist())) != len(places):
        raise ValueError("of elements that share memory")
    source = np.zeros(count, "int64")
    source[places] = np.arange(len(places))
    part = ctx.emit(op.reshape(call.args[1], (len(places),)))
    made = ctx.emit(op.reshape(at_places(ctx, part, 0, source.tolist()), shape_of(x)))
    if len(places) < count:
        inside = np.zeros(count, bool)
        inside[places] = True
        made = ctx.emit(op.where(constant(inside.reshape(shape_of(x)), "bool"), made, x))
    return ctx.emit(op.permute_dims(made, np.argsort(order).tolist()))


def _between_zeros(ctx: Context, x: Any, axis: int, before: int, after: int) -> Any:
    widths = [0] * (2 * len(shape_of(x)))
    widths[2 * axis : 2 * axis + 2] = [before, after]
    return ctx.emit(op.nn.pad(x, widths)) if any(widths) else x


_UPSAMPLED = {"nearest": (1, 2, 3), "_nearest_exact": (1, 2, 3), "linear": (1,), "bilinear": (2,),
              "trilinear": (3,), "bicubic": (2,)}  # fmt: skip
_RESAMPLING = {
    f"{'_' * kind.startswith('_')}upsample_{kind.lstrip('_')}{rank}d": rank
    for kind, ranks in _UPSAMPLED.items() for rank in ranks
} | {"_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 2}  # fmt: skip

# Name -> (value, None for an argument, and its place); what is empty has nobody's values.
_FILLED: dict[str, tuple[float | None, int]] = {
    "empty.memory_format": (0, 0), "empty_like.default": (0, 0), "empty_strided.default": (0, 0),
    "full.default": (None, 1), "full_like.default": (None, 1), "new_empty.default": (0, 0),
    "new_full.default": (None, 2), "new_ones.default": (1, 0), "new_zeros.default": (0, 0),
    "ones.default": (1, 0), "ones_like.default": (1, 0), "zeros.default": (0, 0),
    "zeros_like.default": (0, 0),
}  # fmt: skip

BACKWARD: dict[str, Builder] = {
    "_adaptive_avg_pool2d_backward.default": _adaptive_backward(2),
    "_adaptive_avg_pool3d_backward.default": _adaptive_backward(3),
    "as_strided.default": _strided,
    "as_strided_scatter.default": _strided_scatter,
    "avg_pool2d_backward.default": _average_pool_backward(2),
    "avg_pool3d_backward.default": _average_pool_backward(3),
    "detach.default": identity,
    "max_pool2d_with_indices.default": batched(2, _max_pool(2)),
    "max_pool2d_with_indices_backward.default": batched(2, _max_pool2d_backward, 2),
    "max_pool3d_with_indices.default": batched(3, _max_pool(3)),
    "max_pool3d_with_indices_backward.default": batched(3, _max_pool3d_backward, 2),
    "select_backward.default": _select_backward,
    "slice_backward.default": _slice_backward,
    "relay_wgrad::max_pool2d_backward.default": batched(2, _max_pool2d_backward, 2),
    "relay_wgrad::max_pool3d_backward.default": batched(3, _max_pool3d_backward, 2),
    "relay_wgrad::upsample.default": _own_resampled,
    "relay_wgrad::upsample_backward.default": _own_resampled_backward,
    **{name: filled(value, place, stored=False) for name, (value, place) in _FILLED.items()},
    **{f"{name}.default": _resampled(rank, False) for name, rank in _RESAMPLING.items()},
    **{f"{name}_backward.default": _resampled(rank, True) for name, rank in _RESAMPLING.items()},
    **{f"reflection_pad{r}d_backward.default": _border_backward("reflect") for r in (1, 2, 3)},
    **{f"replication_pad{r}d_backward.default": _border_backward("edge") for r in (1, 2, 3)},
}
"""ATen overload -> builder, before those of `ops.OPS`."""
