"""PyTorch's layers as ops that have a gradient.

`LAYERS` maps an ATen overload to a builder of (function under construction, what it reads), which
reads ATen's words into the builders of `frontend.layers` and `frontend.norms`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...ops.moments import moments, standardized
from ...ranks import RANKS
from .. import layers, norms
from ..context import Context, shape_of
from ..sizes import is_open, number
from .activations import ACTIVATIONS
from .call import Args, Builder, Call, check_elements, ints


def _convolution(ctx: Context, call: Call) -> Any:
    x, weight, bias, padding = call.args[0], call.args[1], call.arg(2), call.arg(4, 0)
    check_elements(input=x, weight=weight)
    taps = shape_of(weight)[2:]
    rank = len(taps)
    strides, dilation = ints(call.arg(3, 1), rank), ints(call.arg(5, 1), rank)
    if padding == "valid":
        padding = 0
    if padding == "same":  # the odd one after; PyTorch takes no stride with it
        whole = [d * (k - 1) for d, k in zip(dilation, taps, strict=True)]
        pads = [n // 2 for n in whole] + [n - n // 2 for n in whole]
    else:
        pads = ints(padding, rank) * 2
    groups = int(call.arg(6, 1))
    return layers.conv(ctx, x, weight, bias, strides, pads, dilation, groups)


def transposed(
    ctx: Context, x: Any, weight: Any, bias: Any, strides: Sequence[int], padding: Sequence[int],
    extra: Sequence[int], dilation: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    """A transposed convolution in PyTorch's words: one padding and one output padding an axis."""
    check_elements(input=x, weight=weight)
    full = [
        (p - 1) * s + d * (k - 1) + 1 + e
        for p, s, d, k, e in zip(
            shape_of(x)[2:], strides, dilation, shape_of(weight)[2:], extra, strict=True
        )
    ]
    totals = [n - 2 * p for n, p in zip(full, padding, strict=True)]
    return layers.conv_transpose(ctx, x, weight, bias, strides, dilation, groups, padding, totals)


def _transposed(ctx: Context, call: Call) -> Any:
    rank = len(shape_of(call.args[1])) - 2
    strides, padding, extra = (ints(call.arg(3 + i, int(i == 0)), rank) for i in range(3))
    return transposed(
        ctx, call.args[0], call.args[1], call.arg(2), strides, padding, extra,
        ints(call.arg(7, 1), rank), int(call.arg(6, 1)),
    )  # fmt: skip


Windows = tuple[list[int], list[int], list[int], list[int]]


def pool_window(call: Call, at: int, rank: int) -> Windows:
    """(kernel, strides, padding, dilation) of arguments from `at` on, and `ceil_mode` is read."""
    kernel = ints(call.args[at], rank)
    strides = ints(call.arg(at + 1) or kernel, rank)
    call.arg(at + 4)
    return kernel, strides, ints(call.arg(at + 2, 0), rank), ints(call.arg(at + 3, 1), rank)


def max_pool(rank: int) -> Builder:
    """(x, kernel, strides, padding, dilation, whether sizes are rounded up)."""

    def build(ctx: Context, call: Call) -> Any:
        kernel, strides, padding, dilation = pool_window(call, 1, rank)
        if set(dilation) != {1}:
            raise ValueError("dilated pooling has no gradient in TVM")
        return layers.max_pool(ctx, call.args[0], kernel, strides, padding * 2, call.arg(5, False))

    return build


def _average_pool(rank: int) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        if call.arg(6) is not None:
            raise ValueError("divisor_override is not supported")
        kernel = ints(call.args[1], rank)
        strides, pads = ints(call.arg(2) or kernel, rank), ints(call.arg(3, 0), rank) * 2
        return layers.average_pool(
            ctx, call.args[0], kernel, strides, pads, call.arg(4, False), bool(call.arg(5, True))
        )

    return build


def _with_indices(pool: Builder) -> Builder:
    """A pooling; nothing is known of the places of the maxima."""
    return lambda ctx, call: (pool(ctx, call), None)


def batched(rank: int, build: Builder, operands: int = 1) -> Builder:
    """The builder, for images without an axis for the batch too: a batch of one.  So many operands,
    the first ones, are images, and so is the first result."""

    def one(ctx: Context, call: Call) -> Any:
        if len(shape_of(call.args[0])) != rank + 1:
            return build(ctx, call)
        for i in range(operands):
            call.args[i] = ctx.emit(relax.op.expand_dims(call.args[i], [0]))
        made = build(ctx, call)
        several = isinstance(made, tuple)
        first = ctx.emit(relax.op.squeeze(made[0] if several else made, [0]))
        return (first, *made[1:]) if several else first

    return one


def _linear(ctx: Context, call: Call) -> Any:
    turned = ctx.emit(relax.op.permute_dims(call.args[1]))
    out = ctx.emit(relax.op.matmul(call.args[0], turned))
    return out if call.arg(2) is None else ctx.emit(relax.op.add(out, call.args[2]))


# ---- normalization and dropout ------------------------------------------------------------------


def _batch_norm(ctx: Context, call: Call) -> Any:
    """(x, weight, bias, running mean, running variance, training, momentum, epsilon)."""
    training, momentum, epsilon = call.args[5], call.args[6], call.args[7]
    return _normalized(ctx, call.args[:5], bool(training), momentum, epsilon)


def _batch_norm_evaluated(ctx: Context, call: Call) -> Any:
    return _normalized(ctx, call.args[:5], False, call.args[5], call.args[6])


def _batch_norm_without_statistics(ctx: Context, call: Call) -> Any:
    x, weight, bias, _, _, epsilon = call.args[:6]
    return _normalized(ctx, [x, weight, bias, None, None], True, 0.0, epsilon)


def _normalized(
    ctx: Context, args: Args, training: bool, momentum: float, epsilon: float
) -> tuple[Any, ...]:
    """(result, None, None, running mean, running variance), as the functional ATen op has it.

    PyTorch's running variance takes the sample's variance, n/(n-1) times the population's by which
    the batch is normalized.
    """
    x, weight, bias, mean, var = args
    if not _by_its_own(ctx, args, training):
        out = norms.evaluated(ctx, x, weight, bias, mean, var, epsilon)
        return out, None, None, mean, var
    running: list[tuple[str, Any, Any] | None] = [None, None]
    if mean is not None:
        axes = norms.batch_axes(shape_of(x))
        sizes = [shape_of(x)[a] for a in axes]
        norms.check_statistics(ctx, shape_of(x), axes)
        rates = (ctx.const(momentum), _sample_rate(ctx, sizes, momentum))
        running = [(v.name, v, rate) for v, rate in zip((mean, var), rates, strict=True)]
    out = norms.trained(ctx, x, weight, bias, epsilon, 1 - momentum, running)
    return out, None, None, mean, var


def _by_its_own(ctx: Context, args: Args, training: bool) -> bool:
    """Whether x is normalized by its own statistics and not by running ones, which are asked for by
    the option `bn` where there are any."""
    _, weight, bias, mean, _ = args
    if ctx.options.bn in ("train", "eval") and mean is not None:
        return bool(ctx.options.bn == "train")
    if ctx.options.bn == "frozen" and mean is not None:
        return training and not ctx.is_frozen(weight, bias)
    return training


def _sample_rate(ctx: Context, sizes: Sequence[Any], momentum: float) -> Any:
    """momentum n / (n - 1), of n values of these axes."""
    if not is_open(sizes):
        count = math.prod(sizes)
        return ctx.const(momentum * count / (count - 1))
    values = number(sizes, ctx.options.dtype, ctx.emit)
    others = ctx.emit(relax.op.subtract(values, ctx.const(1.0)))
    return ctx.emit(relax.op.multiply(relax.op.divide(values, others), ctx.const(momentum)))


def _layer_norm(ctx: Context, call: Call) -> Any:
    """(x, the shape of the last axes, weight, bias, epsilon)."""
    x, last = call.args[0], len(call.args[1])
    rank = len(shape_of(x))
    out = standardized(ctx.emit, x, range(rank - last, rank), float(call.arg(4, 1e-5)))
    return norms.affine(ctx, out, call.arg(2), call.arg(3))


def _group_norm(ctx: Context, call: Call) -> Any:
    """(x, groups, weight, bias, epsilon)."""
    groups, epsilon = int(call.args[1]), float(call.arg(4, 1e-5))
    return norms.in_groups(ctx, call.args[0], groups, epsilon, call.arg(2), call.arg(3))


def _instance_norm(ctx: Context, call: Call) -> Any:
    """(x, weight, bias, running mean, running variance, by x's own, momentum, epsilon, cudnn)."""
    x, weight, bias, mean, var = call.args[:5]
    shape, momentum, epsilon = shape_of(x), float(call.args[6]), float(call.args[7])
    _ = call.args[8]  # where it is computed
    if not _by_its_own(ctx, call.args[:5], bool(call.args[5])):
        return norms.evaluated(ctx, x, weight, bias, mean, var, epsilon)
    if mean is not None:
        _keep_means(ctx, x, (mean, var), momentum)
    return norms.in_groups(ctx, x, shape[1], epsilon, weight, bias)


def _keep_means(ctx: Context, x: Any, running: Sequence[Any], momentum: float) -> None:
    """Running statistics of an instance normalization: means over the images, of the variance as
    of a sample.  Raises ValueError for images of one pixel, which have none."""
    shape = shape_of(x)
    axes = list(range(2, len(shape)))
    if math.prod(shape[a] for a in axes) == 1:
        raise ValueError(f"running statistics of {list(shape)} need more than one pixel")
    mean, _, variance = moments(ctx.emit, x, axes)
    rates = (ctx.const(momentum), _sample_rate(ctx, [shape[a] for a in axes], momentum))
    for state, own, rate in zip(running, (mean, variance), rates, strict=True):
        batch = ctx.emit(relax.op.mean(own, [0]))
        ctx.states.append((state.name, norms.updated(ctx, state, batch, 1 - momentum, rate)))


def _rms_norm(ctx: Context, call: Call) -> Any:
    """(x, the shape of the last axes, weight, epsilon): over the root of the mean square."""
    x, rank = call.args[0], len(shape_of(call.args[0]))
    axes = list(range(rank - len(call.args[1]), rank))
    epsilon = call.arg(3)
    given = float(np.finfo(call.dtype).eps if epsilon is None else epsilon)
    return norms.affine(ctx, norms.rms_norm(ctx, x, axes, given), call.arg(2), None)


def _native_layer_norm(ctx: Context, call: Call) -> tuple[Any, ...]:
    return _layer_norm(ctx, call), None, None


def _native_group_norm(ctx: Context, call: Call) -> tuple[Any, ...]:
    """(x, weight, bias, N, C, pixels, groups, epsilon)."""
    call.args[3:6]
    x, weight, bias, groups, epsilon = (call.args[i] for i in (0, 1, 2, 6, 7))
    return norms.in_groups(ctx, x, int(groups), float(epsilon), weight, bias), None, None


def _weight_norm(ctx: Context, call: Call) -> Any:
    """v·g/|v|, a norm for each place along an axis (-1: one for all), as g has it."""
    v, g, axis = call.args[0], call.args[1], int(call.arg(2, 0))
    others = [a for a in range(len(shape_of(v))) if a != axis]
    square = ctx.emit(relax.op.sum(relax.op.multiply(v, v), others, keepdims=axis >= 0))
    return ctx.emit(relax.op.multiply(v, relax.op.divide(g, relax.op.sqrt(square))))


def _dropout(ctx: Context, call: Call) -> Any:
    x, rate, training = call.args[0], float(call.args[1]), call.arg(2, True)
    if not training or rate == 0.0:
        return x
    return layers.masked(ctx, x, rate)


# By rank: what is for lines called `default` is for images and volumes called `input`, and only
# those two have pools with places.
_OF_RANK: dict[str, Builder] = {}
for _rank in RANKS:
    _given = "default" if _rank == 1 else "input"
    _of_this = {
        f"avg_pool{_rank}d.default": _average_pool(_rank),
        f"conv{_rank}d.default": _convolution,
        f"conv{_rank}d.padding": _convolution,
        f"conv_transpose{_rank}d.{_given}": _transposed,
        f"max_pool{_rank}d.default": max_pool(_rank),
    }
    if _rank > 1:
        _of_this[f"max_pool{_rank}d_with_indices.default"] = _with_indices(max_pool(_rank))
    _OF_RANK |= {name: batched(_rank, build) for name, build in _of_this.items()}

LAYERS: dict[str, Builder] = {
    **ACTIVATIONS,
    **_OF_RANK,
    "_native_batch_norm_legit.no_stats": _batch_norm_without_statistics,
    "_native_batch_norm_legit_functional.default": _batch_norm,
    "_native_batch_norm_legit_no_training.default": _batch_norm_evaluated,
    "_weight_norm.default": _weight_norm,
    "group_norm.default": _group_norm,
    "layer_norm.default": _layer_norm,
    "linear.default": _linear,
    "instance_norm.default": _instance_norm,
    "native_dropout.default": lambda ctx, call: (_dropout(ctx, call), None),
    "native_group_norm.default": _native_group_norm,
    "native_layer_norm.default": _native_layer_norm,
    "rms_norm.default": _rms_norm,
}

WITH_STATISTICS = (
    "_native_batch_norm_legit_functional.default", "_native_batch_norm_legit_no_training.default",
    "instance_norm.default",
)  # fmt: skip
"""Those whose operands 3 and 4 are running statistics."""
