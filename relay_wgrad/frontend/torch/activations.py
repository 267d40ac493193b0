"""PyTorch's activations and selections: rows for `layers.LAYERS`.

A builder takes the function under construction and a call, whose arguments are in ATen's order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...dtypes import FLOATS
from ...ir import constant
from .. import activations as act
from ..context import Context, shape_of
from .call import as_dtype

op = relax.op
Builder = Callable[[Context, Any], Any]


def _plain(build: Callable[..., Any], *defaults: float) -> Builder:
    """x, then numbers that have defaults."""

    def row(ctx: Context, call: Any) -> Any:
        numbers = []
        for i, default in enumerate(defaults, start=1):
            given = call.arg(i)
            numbers.append(default if given is None else float(given))
        return build(ctx, call.args[0], *numbers)

    return row


def _clamp(ctx: Context, call: Any) -> Any:
    """x between (or above, or below) numbers or tensors."""
    low, high = call.arg(1, call.kwargs.get("min")), call.arg(2, call.kwargs.get("max"))
    return _between(ctx, call, low, high)


def _between(ctx: Context, call: Any, low: Any, high: Any) -> Any:
    """Of integers where both are, which PyTorch's promotion has in the dtype; of tensors one bound
    after the other: where they cross the upper one holds."""
    if any(hasattr(bound, "ty") for bound in (low, high)):
        x = call.args[0]
        x = x if low is None else ctx.emit(op.where(op.less(x, low), low, x))
        return x if high is None else ctx.emit(op.where(op.greater(x, high), high, x))
    x = as_dtype(ctx, call.args[0], call.dtype)
    if call.dtype in FLOATS:
        bounds = (None if bound is None else float(bound) for bound in (low, high))
        return act.clamp(ctx, x, *bounds)
    if low is not None:
        x = ctx.emit(op.maximum(x, constant(low, call.dtype)))
    return x if high is None else ctx.emit(op.minimum(x, constant(high, call.dtype)))


def _below(ctx: Context, call: Any) -> Any:
    return _between(ctx, call, None, call.args[1])


def _above(ctx: Context, call: Any) -> Any:
    return _between(ctx, call, call.args[1], None)


def _rrelu(ctx: Context, call: Any) -> Any:
    if call.arg(3, False):
        raise ValueError("random slopes (training mode) are not supported: use eval()")
    low, high = float(call.arg(1, 1 / 8)), float(call.arg(2, 1 / 3))
    return act.leaky_relu(ctx, call.args[0], (low + high) / 2)


def _elu(ctx: Context, call: Any) -> Any:
    alpha, scale, steep = (float(call.arg(i, 1.0)) for i in (1, 2, 3))
    return act.elu(ctx, call.args[0], alpha, scale, steep)


def _gelu(ctx: Context, call: Any) -> Any:
    kind = call.kwargs.get("approximate", call.arg(1, "none"))
    return ctx.emit((op.nn.gelu if kind == "none" else op.nn.gelu_tanh)(call.args[0]))


def _prelu(ctx: Context, call: Any) -> Any:
    return act.prelu(ctx, call.args[0], call.args[1])


def _first_where(compare: Callable[[Any, Any], Any]) -> Builder:
    """fmax and fmin: a number rather than NaN, the first operand rather than an equal one."""

    def row(ctx: Context, call: Any) -> Any:
        x, y = call.args[:2]
        return ctx.emit(op.where(op.logical_or(compare(x, y), op.isnan(y)), x, y))

    return row


def _reduced(largest: bool) -> Builder:
    """amax and amin."""

    def row(ctx: Context, call: Any) -> Any:
        axes = call.arg(1, [])
        axes = [axes] if isinstance(axes, int) else [int(a) for a in axes]
        return act.extremum(ctx, call.args[0], axes or None, bool(call.arg(2, False)), largest)

    return row


def _whole(largest: bool) -> Builder:
    return lambda ctx, call: act.global_extremum(ctx, call.args[0], largest)


def _along(largest: bool) -> Builder:
    def row(ctx: Context, call: Any) -> Any:
        keep = bool(call.arg(2, False))
        return act.selected(ctx, call.args[0], int(call.args[1]), keep, largest)

    return row


def _glu(ctx: Context, call: Any) -> Any:
    x, axis = call.args[0], int(call.arg(1, -1)) % len(shape_of(call.args[0]))
    parts = ctx.emit(op.split(x, 2, axis))
    first, second = (ctx.emit(relax.TupleGetItem(parts, i)) for i in (0, 1))
    return ctx.emit(op.multiply(first, op.sigmoid(second)))


ACTIVATIONS: dict[str, Builder] = {
    "amax.default": _reduced(True),
    "amin.default": _reduced(False),
    **{f"{name}.{kind}": _clamp for name in ("clamp", "clip") for kind in ("Tensor", "default")},
    **{f"clamp_max.{kind}": _below for kind in ("Tensor", "default")},
    **{f"clamp_min.{kind}": _above for kind in ("Tensor", "default")},
    "celu.default": _plain(act.celu, 1.0),
    "elu.default": _elu,
    "fmax.default": _first_where(op.greater_equal),
    "fmin.default": _first_where(op.less_equal),
    "gelu.default": _gelu,
    "glu.default": _glu,
    "hardsigmoid.default": lambda ctx, call: act.hard_sigmoid(ctx, call.args[0], 1 / 6, 0.5),
    "hardswish.default": _plain(act.hard_swish),
    "hardtanh.default": _plain(act.hardtanh, -1.0, 1.0),
    "leaky_relu.default": _plain(act.leaky_relu, 0.01),
    "log_sigmoid.default": _plain(act.log_sigmoid),
    "max.default": _whole(True),
    "max.dim": _along(True),
    "min.default": _whole(False),
    "min.dim": _along(False),
    "mish.default": _plain(act.mish),
    "prelu.default": _prelu,
    "relu6.default": _plain(lambda ctx, x: act.hardtanh(ctx, x, 0.0, 6.0)),
    "rrelu.default": _rrelu,
    "selu.default": _plain(act.selu),
    "softplus.default": _plain(act.softplus, 1.0, 20.0),
    "threshold.default": _plain(act.threshold, 0.0, 0.0),
}
"""ATen overload -> builder."""
