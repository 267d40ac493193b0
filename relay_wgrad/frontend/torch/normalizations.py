"""ATen's batch normalization with all its results, its backward op, softmax, attention, dropout.

Batch normalization keeps its two ops, so that passes that match them find them; other layers'
forward and backward ops are decomposed by PyTorch where they have no row.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from ...dtypes import wide_of
from ...ir import constant
from ...ops.batch_norm_train import batch_norm_train
from ...ops.batch_norm_train_backward import batch_norm_train_backward
from ...ops.group_norm_train import group_norm_train
from ...ops.group_norm_train_backward import group_norm_train_backward
from ...ops.moments import deviation
from ...ops.train_norm import dtype_of
from .. import norms
from ..attention import attention_weights
from ..context import Context, shape_of
from .call import Builder, Call, as_dtype, dtype_name
from .math import cast, softmax, variance

op = relax.op


# ---- batch normalization -------------------------------------------------------------------------


def _forward(
    training: int | bool, momentum: int, epsilon: int, results: str, statistics: int | None = 3
) -> Builder:
    """(x, weight, bias, …): where the settings and the running statistics are, and which results
    there are, by letters: y, m (mean), r (1 / deviation), n and v (new running mean and variance),
    e (nothing of use)."""

    def build(ctx: Context, call: Call) -> tuple[Any, ...]:
        given = call.args[:]
        x, weight, bias = given[:3]
        mean, var = (None, None) if statistics is None else given[statistics : statistics + 2]
        trains = training if isinstance(training, bool) else bool(given[training])
        if trains and mean is not None and "n" not in results:
            raise ValueError("it changes running statistics in place: functionalize the graph")
        known = () if trains else (mean, var)
        y, center, rstd, spread = norms.with_statistics(
            ctx, x, weight, bias, float(given[epsilon]), known
        )
        made: dict[str, Any] = {"y": y, "m": center, "r": rstd, "n": mean, "v": var}
        if trains and mean is not None:
            rate = float(given[momentum])
            count = math.prod(shape_of(x)[a] for a in norms.batch_axes(shape_of(x)))
            for letter, fresh, by in (("n", center, 1.0), ("v", spread, count / max(count - 1, 1))):
                new = norms.updated(ctx, made[letter], fresh, 1 - rate, ctx.const(rate * by))
                made[letter] = new
        # PyTorch gives empty ones where there is nothing to keep.
        return tuple(
            _empty(ctx, said) if c == "e" or tuple(said.shape) == (0,) else made[c]
            for c, said in zip(results, call.result, strict=True)
        )

    return build


def _empty(ctx: Context, said: Any) -> Any:
    return ctx.emit(op.zeros([int(size) for size in said.shape], dtype_name(said)))


def _backward(training: int | bool, epsilon: int, mask: int, order: tuple[int, ...]) -> Builder:
    """The gradients by x, weight and bias that the mask (none: all) wants; `order`: where
    dy, x, weight, the running and the batch's statistics are."""

    def build(ctx: Context, call: Call) -> tuple[Any, ...]:
        dy, x, weight, mean, var, batch_mean, batch_rstd = (call.args[i] for i in order)
        call.args[:]
        trains = training if isinstance(training, bool) else bool(call.args[training])
        wanted = call.args[mask] if mask >= 0 else (True, True, True)
        center, rstd = batch_mean, batch_rstd
        if not trains:
            root = deviation(ctx.emit, var, float(call.args[epsilon]))
            center, rstd = mean, ctx.emit(op.divide(ctx.const(1.0), root))
        made = norms.batch_gradients(ctx, dy, x, weight, center, rstd, trained=trains)
        return tuple(g if want else None for g, want in zip(made, wanted, strict=True))

    return build


# ---- of `relay_wgrad.torch.norms`, which are operators as they are -------------------------------


def _fields(ctx: Context, made: Any, count: int) -> list[Any]:
    whole = ctx.emit(made)
    return [ctx.emit(relax.TupleGetItem(whole, i)) for i in range(count)]


def _settings(call: Call, at: int) -> dict[str, Any]:
    """The attributes of the relax operator, from the argument that is `groups` on."""
    groups, *rates, epsilon, activation, alpha = call.args[at:]
    given = {"epsilon": float(epsilon), "activation": activation, "alpha": float(alpha)}
    if groups:
        return given | {"groups": int(groups)}
    return given | dict(zip(("momentum",), map(float, rates), strict=False))


def _affine(ctx: Context, x: Any, weight: Any, bias: Any) -> list[Any]:
    """gamma and beta, of which PyTorch may have none."""
    channels, dtype = relax.ShapeExpr([int(shape_of(x)[1])]), wide_of(dtype_of(x))
    return [
        ctx.emit(make(channels, dtype)) if given is None else given
        for given, make in ((weight, op.ones), (bias, op.zeros))
    ]


def _norm_train(ctx: Context, call: Call) -> Any:
    x, weight, bias, residual, mean, var, groups = call.args[:7]
    affine, given = _affine(ctx, x, weight, bias), _settings(call, 6)
    others = [v for v in (residual, mean, var) if v is not None]
    make = group_norm_train if groups else batch_norm_train
    parts = _fields(ctx, make(x, *affine, *others, **given), 3 if groups else 5)
    return (*parts, None, None) if groups else tuple(parts)


def _norm_train_backward(ctx: Context, call: Call) -> Any:
    dy, x, weight, bias, mean, rstd, y, groups = call.args[:8]
    affine, given = _affine(ctx, x, weight, bias), _settings(call, 7)
    more = [] if y is None else [y]
    make = group_norm_train_backward if groups else batch_norm_train_backward
    parts = _fields(ctx, make(dy, x, *affine, mean, rstd, *more, **given), 3 + len(more))
    return (*parts, None) if y is None else tuple(parts)


# ---- attention -----------------------------------------------------------------------------------


def _weights(
    ctx: Context, call: Call, q: Any, k: Any, rate: Any, causal: Any
) -> tuple[Any, Any, float]:
    """(softmax of the scaled products, those with masks, the scale)."""
    if rate:
        raise ValueError("dropout within attention is not supported")
    if shape_of(q)[:-2] != shape_of(k)[:-2]:
        raise ValueError(
            f"heads of q {list(shape_of(q))} and k {list(shape_of(k))} are not as many"
        )
    given = call.setting("scale")
    scale = 1 / math.sqrt(shape_of(q)[-1]) if given is None else float(given)
    masks = [call.setting("attn_mask")]
    made = attention_weights(ctx, q, k, scale=scale, masks=masks, causal=bool(causal), empty=True)
    return *made, scale


def _attention(ctx: Context, call: Call) -> tuple[Any, Any]:
    """(q, k, v (N, heads, L, E), dropout, causal): the result and the logarithms of the sums."""
    q, k, v = (call.args[i] for i in range(3))
    weights, logits, _ = _weights(ctx, call, q, k, call.arg(3, 0.0), call.arg(4, False))
    most = ctx.emit(op.max(logits, [-1], keepdims=True))
    sums = ctx.emit(op.sum(op.exp(op.subtract(logits, most)), [-1], keepdims=True))
    logs = ctx.emit(op.add(op.log(sums), most))
    out = ctx.emit(op.matmul(weights, v))
    said = call.result[1]
    flat = ctx.emit(op.reshape(logs, [int(s) for s in said.shape]))
    return out, as_dtype(ctx, flat, dtype_name(said))


def _attention_backward(ctx: Context, call: Call) -> tuple[Any, Any, Any]:
    """(dout, q, k, v, out, logarithms, dropout, causal): the weights are computed again."""
    dout, q, k, v = (call.args[i] for i in range(4))
    call.args[4:6]
    weights, _, scale = _weights(ctx, call, q, k, call.args[6], call.args[7])

    def turned(x: Any) -> Any:
        return ctx.emit(op.permute_dims(x, [0, 1, 3, 2]))

    of_v = ctx.emit(op.matmul(turned(weights), dout))
    of_weights = ctx.emit(op.matmul(dout, turned(v)))
    inner = ctx.emit(op.sum(op.multiply(of_weights, weights), [-1], keepdims=True))
    steps = ctx.emit(op.multiply(weights, op.subtract(of_weights, inner)))
    steps = ctx.emit(op.multiply(steps, ctx.const(scale)))
    return ctx.emit(op.matmul(steps, k)), ctx.emit(op.matmul(turned(steps), q)), of_v


# ---- random --------------------------------------------------------------------------------------


def _dropout(ctx: Context, call: Call) -> tuple[Any, Any]:
    """(x, rate, training): x times a mask that is drawn, over what is kept, and the mask."""
    x, rate = call.args[0], float(call.args[1])
    if call.arg(2) is False or rate == 0.0:
        return x, ctx.emit(op.full(call.shape, constant(True, "bool"), "bool"))
    keep = 1.0 - rate
    mask = ctx.draw(call.name, call.shape, "bool", ("bernoulli", keep))
    factor = ctx.const(1 / keep if keep else 0.0)
    return ctx.emit(op.multiply(op.multiply(x, op.astype(mask, call.dtype)), factor)), mask


NORMALIZED: dict[str, Builder] = {
    "_batch_norm_with_update_functional.default": _forward(True, 5, 6, "ymrenv"),
    "_log_softmax.default": softmax(op.nn.log_softmax),
    "_native_batch_norm_legit.no_stats": _forward(3, 4, 5, "ymr", None),
    "_native_batch_norm_legit_functional.default": _forward(5, 6, 7, "ymrnv"),
    "_native_batch_norm_legit_no_training.default": _forward(False, 5, 6, "ymr"),
    "_scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    "_softmax.default": softmax(op.nn.softmax),
    "batch_norm_backward.default": _backward(7, 8, 9, (0, 1, 2, 3, 4, 5, 6)),
    "cudnn_batch_norm.default": _forward(5, 6, 7, "ymre"),
    "cudnn_batch_norm_backward.default": _backward(True, 7, -1, (1, 0, 2, 3, 4, 5, 6)),
    "native_batch_norm_backward.default": _backward(7, 8, 9, (0, 1, 2, 3, 4, 5, 6)),
    "native_dropout.default": _dropout,
    "prims::convert_element_type.default": cast,
    "relay_wgrad::norm_train.default": _norm_train,
    "relay_wgrad::norm_train_backward.default": _norm_train_backward,
    "var_mean.correction": variance(root=False, with_mean=True, few=True),
}
"""ATen overload -> builder, before those of `ops.OPS`."""
