"""Builders of elementwise ops, and the table of all builders.

`OPS` maps an ONNX op to its builder.  To add an op, write one function and one row, with ops that
have a gradient (`tvm.relax.op._op_gradient`), and a case in `tests/support/onnx/op_cases.py`, which
compares value and gradients with PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax

from ...dtypes import FLOATS
from ...ops.elementwise import Elementwise, by
from ...ops.ties import SELU_ALPHA, SELU_SCALE
from ...problem import DTYPE_BYTES
from .. import activations as act
from ..arithmetic import remainder
from ..context import Context, shape_of
from ..sizes import broadcasts_to
from .dtypes import FLOAT_TYPES, OTHER_TYPES, as_float
from .indexing import INDEXING
from .nn import LAYERS
from .node import Node
from .pooling import POOLS
from .products import PRODUCTS
from .random import RANDOM
from .recurrent import RECURRENT
from .reduce import REDUCTIONS
from .resize import RESIZING
from .shapes import SHAPES

op = relax.op
Builder = Callable[[Context, Node], Any]


# ---- elementwise -----------------------------------------------------------------------------


# What a parameter is when it is an operand.
_ROLES = {"Add": "shift", "Div": "scale", "Mul": "scale", "Sub": "shift"}


def _row(name: str, record: Elementwise) -> Builder:
    """An operator of elements: a step function has no gradient, a comparison and a test none."""
    role = _ROLES.get(name, "")

    def build(ctx: Context, node: Node) -> Any:
        operands = []
        for index in range(record.operands):
            operands.append(ctx.tensor(node.operand(index)))
            if role:
                ctx.parameter(node.operand(index), role)
        made = ctx.emit(record.apply(ctx.emit, *operands))
        return ctx.emit(op.grad.no_grad(made)) if record.slope == "step" else made

    return build


def sum_(ctx: Context, node: Node) -> Any:
    """Sum of any number of tensors, as adds."""
    total = ctx.tensor(node.operand(0))
    for index in range(1, len(node.operands)):
        total = ctx.emit(op.add(total, ctx.tensor(node.operand(index))))
    return total


def mean(ctx: Context, node: Node) -> Any:
    """Mean of any number of tensors."""
    return ctx.emit(op.divide(sum_(ctx, node), ctx.const(float(len(node.operands)))))


def clip(ctx: Context, node: Node) -> Any:
    """Clip between two constants, either of which may be missing.

    As `torch.clamp`, whose gradient passes at the bounds; but from 0 to 6 it is how ReLU6 is
    exported, whose gradient is 0 there.
    """
    x = ctx.tensor(node.operand(0))
    low, high = (
        None if bound is None else float(np.asarray(bound).item())
        for bound in (node.setting("min", 1), node.setting("max", 2))
    )
    if low == 0.0 and high == 6.0:
        return act.hardtanh(ctx, x, low, high)
    return act.clamp(ctx, x, low, high)


def _numbered(build: Callable[..., Any], **defaults: float) -> Builder:
    """An activation of attributes that have defaults, in their order."""

    def row(ctx: Context, node: Node) -> Any:
        numbers = [float(node.attr(name, default)) for name, default in defaults.items()]
        return build(ctx, ctx.tensor(node.operand(0)), *numbers)

    return row


def selu(ctx: Context, node: Node) -> Any:
    """Selu: gamma alpha (exp(x) - 1) where x is not positive; PyTorch's numbers by default."""
    given = [node.attr(name) for name in ("alpha", "gamma")]
    rounded = [float(np.float32(v)) for v in (SELU_ALPHA, SELU_SCALE)]
    numbers = [
        exact if value is None or float(value) == near else float(value)
        for value, near, exact in zip(given, rounded, (SELU_ALPHA, SELU_SCALE), strict=True)
    ]
    return act.elu(ctx, ctx.tensor(node.operand(0)), *numbers)


def prelu(ctx: Context, node: Node) -> Any:
    """PRelu: a slope that is broadcast to x."""
    x, slope = ctx.tensor(node.operand(0)), ctx.parameter(node.operand(1), "slope")
    shape = shape_of(x)
    if not broadcasts_to(shape_of(slope), shape):
        raise ValueError(f"a slope of {list(shape_of(slope))} is not broadcast to {list(shape)}")
    return act.sloped(ctx, x, slope)


def gelu(ctx: Context, node: Node) -> Any:
    """Gelu, of the error function or by tanh."""
    kind = node.attr("approximate", "none")
    if kind not in ("none", "tanh"):
        raise ValueError(f"approximate={kind!r}: expected 'none' or 'tanh'")
    return ctx.emit(
        (op.nn.gelu if kind == "none" else op.nn.gelu_tanh)(ctx.tensor(node.operand(0)))
    )


def power(ctx: Context, node: Node) -> Any:
    """Pow; the exponent may be an integer."""
    x, exponent = ctx.tensor(node.operand(0)), node.operand(1)
    if exponent.array is not None and not exponent.weight and exponent.array.size == 1:
        value = float(exponent.array.item())
        if value == 2.0 and len(exponent.array.shape) <= len(shape_of(x)):
            return ctx.emit(op.multiply(x, x))
        return ctx.emit(op.power(x, ctx.const(exponent.array)))
    return ctx.emit(op.power(x, as_float(ctx, ctx.tensor(exponent))))


def extremum(function: Callable[[Any, Any], Any]) -> Builder:
    """Max and Min of any number of tensors; two that are equal share the gradient."""

    def build(ctx: Context, node: Node) -> Any:
        tensors = [ctx.tensor(node.operand(i)) for i in range(len(node.operands))]
        return reduce(lambda a, b: ctx.emit(function(a, b)), tensors)

    return build


# ---- choices ---------------------------------------------------------------------------------


def where(ctx: Context, node: Node) -> Any:
    """Where a condition holds the second operand, else the third."""
    condition, yes, no = (ctx.tensor(node.operand(i)) for i in range(3))
    return ctx.emit(op.where(condition, yes, no))


def infinite(ctx: Context, node: Node) -> Any:
    """IsInf, of both signs."""
    if not (node.attr("detect_negative", 1) and node.attr("detect_positive", 1)):
        raise ValueError("infinities of one sign alone are not supported")
    return ctx.emit(op.isinf(ctx.tensor(node.operand(0))))


def softmax(ctx: Context, node: Node) -> Any:
    """Softmax and LogSoftmax; before opset 13 all axes from `axis` on are one."""
    x = ctx.tensor(node.operand(0))
    shape = shape_of(x)
    plain = node.proto.op_type == "Softmax"
    function = op.nn.softmax if plain else op.nn.log_softmax
    axis = int(node.attr("axis", -1 if ctx.options.opset >= 13 else 1))
    if ctx.options.opset >= 13:
        return ctx.emit(function(x, axis))
    axis %= len(shape)
    flat = ctx.emit(op.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:]))))
    return ctx.emit(op.reshape(function(flat, 1), shape))


def cast(ctx: Context, node: Node) -> Any:
    """Cast: to a float the graph's dtype, between floats the identity; to others no gradient.

    The graph's notes say where it would have rounded.
    """
    x, to = ctx.tensor(node.operand(0)), int(node.attr("to"))
    if to in FLOAT_TYPES:
        whole, wanted = ctx.options.dtype, FLOAT_TYPES[to]
        rounds = DTYPE_BYTES[wanted] < DTYPE_BYTES[whole]
        if rounds and str(x.ty.dtype) in FLOATS:
            ctx.note_once(f"Cast to {wanted}: floats stay {whole} throughout")
        return as_float(ctx, x)
    if to not in OTHER_TYPES:
        raise ValueError(f"to={to}: only floats, {', '.join(OTHER_TYPES.values())} are supported")
    return _cast(ctx, x, OTHER_TYPES[to])


def _cast(ctx: Context, x: Any, to: str) -> Any:
    """To what is no float: no gradient flows."""
    dtype = str(x.ty.dtype)
    if dtype == to:
        return x
    if dtype in FLOATS:
        x = ctx.emit(op.grad.no_grad(x))
    if to == "bool":
        return ctx.emit(op.not_equal(x, relax.const(0, dtype)))
    return ctx.emit(op.astype(x, to))


def cast_like(ctx: Context, node: Node) -> Any:
    """CastLike: as Cast, to the second operand's dtype."""
    x, like = ctx.tensor(node.operand(0)), str(ctx.tensor(node.operand(1)).ty.dtype)
    return as_float(ctx, x) if like in FLOATS else _cast(ctx, x, like)


def swish(ctx: Context, x: Any, alpha: float) -> Any:
    """x sigmoid(alpha x)."""
    return ctx.emit(op.multiply(x, op.sigmoid(op.multiply(x, ctx.const(alpha)))))


def shrink(ctx: Context, x: Any, limit: float, bias: float) -> Any:
    """x nearer to 0 by `bias` where |x| is above the limit, else 0."""
    low = act.where(ctx, op.less(x, ctx.const(-limit)), op.add(x, ctx.const(bias)), 0.0)
    return act.where(ctx, op.greater(x, ctx.const(limit)), op.subtract(x, ctx.const(bias)), low)


def mod(ctx: Context, node: Node) -> Any:
    """Mod: of floats C's fmod, x - y trunc(x / y), of integers with the sign of y or x."""
    x, y = (ctx.tensor(node.operand(i)) for i in range(2))
    plain = bool(node.attr("fmod", 0))
    if str(x.ty.dtype) not in FLOATS:
        return ctx.emit((op.mod if plain else op.floor_mod)(x, y))
    if not plain:
        raise ValueError("fmod=0 of floats: ONNX has only fmod=1 for them")
    return remainder(ctx, x, y, floor=False)


OPS: dict[str, Builder] = {
    **{name: _row(name, record) for name, record in by("onnx").items()},
    **INDEXING,
    **LAYERS,
    **POOLS,
    **PRODUCTS,
    **RANDOM,
    **RECURRENT,
    **REDUCTIONS,
    **RESIZING,
    **SHAPES,
    "Cast": cast,
    "CastLike": cast_like,
    "Celu": _numbered(act.celu, alpha=1.0),
    "Clip": clip,
    "Elu": _numbered(act.elu, alpha=1.0),
    "Gelu": gelu,
    "HardSigmoid": _numbered(act.hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": _numbered(act.hard_swish),
    "IsInf": infinite,
    "LeakyRelu": _numbered(act.leaky_relu, alpha=0.01),
    "LogSoftmax": softmax,
    "Max": extremum(op.maximum),
    "Mean": mean,
    "Min": extremum(op.minimum),
    "Mish": _numbered(act.mish),
    "Mod": mod,
    "PRelu": prelu,
    "Pow": power,
    "Selu": selu,
    "Shrink": _numbered(shrink, lambd=0.5, bias=0.0),
    "Softmax": softmax,
    "Softplus": _numbered(act.softplus),
    "Softsign": _numbered(act.softsign),
    "Sum": sum_,
    "Swish": _numbered(swish, alpha=1.0),
    "ThresholdedRelu": _numbered(
        lambda ctx, x, limit: act.threshold(ctx, x, limit, 0.0), alpha=1.0
    ),
    "Where": where,
}
"""ONNX op -> builder.  A split returns a list of results, every other builder one."""
