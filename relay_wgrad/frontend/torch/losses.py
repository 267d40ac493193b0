"""ATen's losses as ops that have a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...dtypes import FLOATS
from .. import loss_terms as terms
from ..context import Context, shape_of
from .call import Builder, Call, as_dtype

op = relax.op


def _elementwise_loss(each: Callable[..., Any], at: int, *settings: int) -> Builder:
    """A loss of two operands in the result's dtype; `at` is where its reduction is, then numbers,
    1 by default."""

    def build(ctx: Context, call: Call) -> Any:
        a, b = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
        made = each(ctx, a, b, *(float(call.arg(i, 1.0)) for i in settings))
        return terms.reduced(ctx, made, terms.REDUCTIONS[call.arg(at, 1)])

    return build


def _huber(ctx: Context, a: Any, b: Any, delta: float) -> Any:
    return terms.rounded(ctx, a, b, delta, huber=True)


def _smooth_l1(ctx: Context, a: Any, b: Any, beta: float) -> Any:
    return terms.rounded(ctx, a, b, beta, huber=False)


def _bce(ctx: Context, call: Call) -> Any:
    x, target = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
    weight, positive = (
        None if call.arg(i) is None else as_dtype(ctx, call.args[i], call.dtype) for i in (2, 3)
    )
    each = terms.bce_with_logits(ctx, x, target, weight, positive)
    return terms.reduced(ctx, each, terms.REDUCTIONS[call.arg(4, 1)])


def _class_weight(ctx: Context, call: Call) -> Any:
    return None if call.arg(2) is None else as_dtype(ctx, call.args[2], call.dtype)


def _cross_entropy(ctx: Context, call: Call) -> Any:
    x, target = as_dtype(ctx, call.args[0], call.dtype), call.args[1]
    given = {
        "reduction": terms.REDUCTIONS[call.arg(3, 1)],
        "weight": _class_weight(ctx, call),
        "smoothing": float(call.arg(5, 0.0)),
    }
    logs = ctx.emit(op.nn.log_softmax(x, min(1, len(shape_of(x)) - 1)))
    ignored = int(call.arg(4, -100))
    if str(target.ty.dtype) in FLOATS:
        return terms.cross_entropy_of(ctx, logs, as_dtype(ctx, target, call.dtype), **given)
    return terms.cross_entropy(ctx, logs, as_dtype(ctx, target, "int64"), ignored=ignored, **given)


def _nll(ctx: Context, call: Call) -> Any:
    """Of log-probabilities."""
    labels = as_dtype(ctx, call.args[1], "int64")
    return terms.cross_entropy(
        ctx, call.args[0], labels, ignored=int(call.arg(4, -100)),
        reduction=terms.REDUCTIONS[call.arg(3, 1)], weight=_class_weight(ctx, call),
    )  # fmt: skip


LOSSES: dict[str, Builder] = {
    "binary_cross_entropy_with_logits.default": _bce,
    "cross_entropy_loss.default": _cross_entropy,
    "huber_loss.default": _elementwise_loss(_huber, 2, 3),
    "l1_loss.default": _elementwise_loss(terms.absolute, 2),
    "mse_loss.default": _elementwise_loss(terms.squared, 2),
    "nll_loss_nd.default": _nll,
    "smooth_l1_loss.default": _elementwise_loss(_smooth_l1, 2, 3),
}
"""ATen overload -> builder."""
