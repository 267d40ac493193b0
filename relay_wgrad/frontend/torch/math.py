"""ATen's arithmetic as ops that have a gradient: elementwise, comparisons, sums, products.

Operands are brought to the dtype in which PyTorch combines them.  To add an op, write one row, and
a case for it in `tests/support/torch/op_cases.py`, which compares value and gradient with
autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from ...ir import compared
from .. import activations as act
from ..context import FLOATS, Context, shape_of
from ..curves import floor_quotient
from ..sizes import is_open, number
from .call import Builder, Call, as_dtype, constant, promoted
from .names import op_of

op = relax.op


def _unary(function: Callable[[Any], Any]) -> Builder:
    """One operand, which integers reach as the result's float."""
    return lambda ctx, call: ctx.emit(function(as_dtype(ctx, call.args[0], call.dtype)))


def _scaled(function: Callable[[Any], Any], factor: float) -> Builder:
    """A function times a constant."""

    def build(ctx: Context, call: Call) -> Any:
        made = function(as_dtype(ctx, call.args[0], call.dtype))
        return ctx.emit(op.multiply(made, constant(factor, call.dtype)))

    return build


def _fixed(function: Callable[[Any], Any]) -> Builder:
    """A step function: its gradient is zero."""
    return lambda ctx, call: ctx.emit(op.grad.no_grad(ctx.emit(function(call.args[0]))))


_OF_TRUTHS = {op.add: op.logical_or, op.multiply: op.logical_and}


def _binary(function: Callable[[Any, Any], Any], swapped: bool = False) -> Builder:
    """Two operands in the result's dtype; `alpha` multiplies the second, as ATen has it."""

    def build(ctx: Context, call: Call) -> Any:
        a, b = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
        if call.dtype == "bool":
            if function not in _OF_TRUTHS:
                raise ValueError("arithmetic of bool tensors is not supported")
            return ctx.emit(_OF_TRUTHS[function](a, b))
        alpha = call.setting("alpha", 1) if len(call.args) < 3 else call.args[2]
        if swapped:
            a, b = b, a
        if alpha != 1:
            factor = constant(alpha, call.dtype)
            b = ctx.emit(op.multiply(b, factor))
        return ctx.emit(function(a, b))

    return build


_multiply = _binary(op.multiply)


def _product(ctx: Context, call: Call) -> Any:
    """x y.  torch.export writes softshrink's middle as x * 0: PyTorch's gradient there is 0, also
    where what comes from behind is infinite."""
    _, origin = (call.node.meta.get("torch_fn") if call.node else None) or ("", "")
    if origin == "builtin_function_or_method.softshrink" and call.arg(1) == 0:
        return ctx.emit(op.multiply(op.grad.no_grad(call.args[0]), ctx.const(0.0)))
    return _multiply(ctx, call)


def _compared(function: Callable[[Any, Any], Any]) -> Builder:
    """Two operands in the dtype to which PyTorch promotes them; the result is bool."""

    def build(ctx: Context, call: Call) -> Any:
        dtype = promoted(call, 0, 1)
        a, b = (as_dtype(ctx, call.args[i], dtype) for i in range(2))
        return ctx.emit(compared(function, a, b))

    return build


def _logical(function: Callable[..., Any]) -> Builder:
    """Of truth values; a number is true where it is not 0."""

    def build(ctx: Context, call: Call) -> Any:
        truths = []
        for i in range(len(call.args)):
            x = call.args[i]
            if str(x.ty.dtype) != "bool":
                x = ctx.emit(op.not_equal(x, constant(0, str(x.ty.dtype))))
            truths.append(x)
        return ctx.emit(function(*truths))

    return build


def _bitwise(function: Callable[..., Any]) -> Builder:
    """Of truth values alone."""
    build = _logical(function)

    def checked(ctx: Context, call: Call) -> Any:
        if call.dtype != "bool":
            raise ValueError(f"only bool tensors are supported, got {call.dtype}")
        return build(ctx, call)

    return checked


def _where(ctx: Context, call: Call) -> Any:
    a, b = (as_dtype(ctx, call.args[i], call.dtype) for i in (1, 2))
    return ctx.emit(op.where(call.args[0], a, b))


def _masked_fill(ctx: Context, call: Call) -> Any:
    filling = as_dtype(ctx, call.args[2], call.dtype)
    return ctx.emit(op.where(call.args[1], filling, call.args[0]))


def _power(ctx: Context, call: Call) -> Any:
    exponent = call.args[1]
    x, y = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
    if exponent == 2 and not hasattr(exponent, "ty"):
        return ctx.emit(op.multiply(x, x))
    return ctx.emit(op.power(x, y))


def _softmax(function: Callable[[Any, int], Any]) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        call.arg(2)  # a dtype, or whether half becomes float: both are in the result's type
        return ctx.emit(function(as_dtype(ctx, call.args[0], call.dtype), int(call.args[1])))

    return build


def _third(function: Callable[[Any, Any], Any]) -> Builder:
    """x + value (a · b), or over."""

    def build(ctx: Context, call: Call) -> Any:
        x, a, b = (as_dtype(ctx, call.args[i], call.dtype) for i in range(3))
        made = ctx.emit(function(a, b))
        value = call.setting("value", 1)
        if value != 1:
            made = ctx.emit(op.multiply(made, constant(value, call.dtype)))
        return ctx.emit(op.add(x, made))

    return build


def _divided(ctx: Context, call: Call) -> Any:
    """x / y, rounded: its gradient is zero."""
    mode = call.setting("rounding_mode")
    if mode is None:
        return _binary(op.divide)(ctx, call)
    a, b = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
    if mode == "floor" and call.dtype in _INTEGERS:
        return ctx.emit(op.floor_divide(a, b))
    if call.dtype in _INTEGERS:
        raise ValueError(f"rounding_mode={mode!r} of {call.dtype} is not supported")
    if mode == "floor":
        return floor_quotient(ctx, a, b)
    return ctx.emit(op.grad.no_grad(ctx.emit(op.trunc(ctx.emit(op.divide(a, b))))))


_INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


# ---- sums ----------------------------------------------------------------------------------------


def _axes(given: Any, rank: int) -> list[int]:
    """Axes from 0 on; none given means all."""
    axes = [given] if isinstance(given, int) else list(given or range(rank))
    return [int(a) % rank for a in axes] if rank else []


def _reduced(function: Callable[..., Any]) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        x = as_dtype(ctx, call.args[0], call.dtype)
        axes, keep = _axes(call.arg(1), len(shape_of(x))), bool(call.arg(2, False))
        return ctx.emit(function(x, axes, keepdims=keep)) if axes else x

    return build


def _spread(call: Call) -> tuple[list[int], Any, bool]:
    """(axes, correction, keepdim) of a variance, by its overload: `unbiased` alone, after the axes,
    or a correction."""
    x, overload = call.args[0], op_of(call.node).rpartition(".")[2]
    if overload == "default":
        return _axes(None, len(shape_of(x))), int(call.arg(1, True)), False
    axes = _axes(call.arg(1), len(shape_of(x)))
    if overload == "dim":
        return axes, int(call.arg(2, True)), bool(call.arg(3, False))
    given = call.setting("correction")
    return axes, 1 if given is None else given, bool(call.setting("keepdim", False))


def _variance(root: bool, with_mean: bool = False) -> Builder:
    """The mean square from the mean, over n - correction, or its root; and the mean."""

    def build(ctx: Context, call: Call) -> Any:
        x, (axes, correction, keep) = call.args[0], _spread(call)
        counted = [shape_of(x)[a] for a in axes]
        if not is_open(counted) and math.prod(counted) <= correction:
            found = math.prod(counted)
            raise ValueError(f"{found} values are too few for correction={correction}")
        count = number(counted, call.dtype, ctx.emit)
        mean = ctx.emit(op.mean(x, axes, keepdims=True))
        centred = ctx.emit(op.subtract(x, mean))
        squares = ctx.emit(op.sum(ctx.emit(op.multiply(centred, centred)), axes, keepdims=keep))
        divisor = ctx.emit(op.subtract(count, constant(correction, call.dtype)))
        out = ctx.emit(op.divide(squares, divisor))
        out = ctx.emit(op.sqrt(out)) if root else out
        if not with_mean:
            return out
        return out, ctx.emit(op.reshape(mean, shape_of(out)))

    return build


_OVERLOADS = ("default", "dim", "correction")


def _norm(ctx: Context, call: Call) -> Any:
    x, order = call.args[0], float(call.arg(1, 2))
    axes, keep = _axes(call.arg(2), len(shape_of(x))), bool(call.arg(3, False))
    if order == 2:
        return act.norm(ctx, x, axes, keep)
    size = ctx.emit(op.abs(x))
    if order == 1:
        return ctx.emit(op.sum(size, axes, keepdims=keep))
    if math.isinf(order):
        return act.extremum(ctx, size, axes, keep, order > 0)
    raise ValueError(f"the norm of order {call.arg(1)} is not supported, only 1, 2 and infinity")


# ---- types ---------------------------------------------------------------------------------------


def _cast(ctx: Context, call: Call) -> Any:
    """A change of dtype; to an integer and back no gradient flows."""
    for i in range(1, len(call.args)):
        call.args[i]
    return as_dtype(ctx, call.args[0], call.dtype)


def _identity(ctx: Context, call: Call) -> Any:
    return call.args[0]


def _stopped(ctx: Context, call: Call) -> Any:
    x = call.args[0]
    return ctx.emit(op.grad.no_grad(x)) if str(x.ty.dtype) in FLOATS else x


MATH: dict[str, Builder] = {
    "__and__.Tensor": _bitwise(op.logical_and),
    "__or__.Tensor": _bitwise(op.logical_or),
    "__xor__.Tensor": _bitwise(op.logical_xor),
    "_to_copy.default": _cast,
    "abs.default": _unary(op.abs),
    "add.Scalar": _binary(op.add),
    "add.Tensor": _binary(op.add),
    "addcdiv.default": _third(op.divide),
    "addcmul.default": _third(op.multiply),
    "alias.default": _identity,
    "bitwise_and.Tensor": _bitwise(op.logical_and),
    "bitwise_not.default": _bitwise(op.logical_not),
    "bitwise_or.Tensor": _bitwise(op.logical_or),
    "bitwise_xor.Tensor": _bitwise(op.logical_xor),
    "ceil.default": _fixed(op.ceil),
    "clone.default": _identity,
    "cos.default": _unary(op.cos),
    "detach.default": _stopped,
    "div.Scalar": _binary(op.divide),
    "div.Scalar_mode": _divided,
    "div.Tensor": _binary(op.divide),
    "div.Tensor_mode": _divided,
    "eq.Scalar": _compared(op.equal),
    "eq.Tensor": _compared(op.equal),
    "erf.default": _unary(op.erf),
    "exp.default": _unary(op.exp),
    "floor.default": _fixed(op.floor),
    "ge.Scalar": _compared(op.greater_equal),
    "ge.Tensor": _compared(op.greater_equal),
    "gt.Scalar": _compared(op.greater),
    "gt.Tensor": _compared(op.greater),
    "le.Scalar": _compared(op.less_equal),
    "le.Tensor": _compared(op.less_equal),
    "linalg_vector_norm.default": _norm,
    "log.default": _unary(op.log),
    "log10.default": _scaled(op.log, 1 / math.log(10)),
    "log2.default": _scaled(op.log, 1 / math.log(2)),
    "log_softmax.int": _softmax(op.nn.log_softmax),
    "logical_and.default": _logical(op.logical_and),
    "logical_not.default": _logical(op.logical_not),
    "logical_or.default": _logical(op.logical_or),
    "logical_xor.default": _logical(op.logical_xor),
    "lt.Scalar": _compared(op.less),
    "lt.Tensor": _compared(op.less),
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
    "maximum.default": _binary(op.maximum),
    "mean.default": _reduced(op.mean),
    "mean.dim": _reduced(op.mean),
    "minimum.default": _binary(op.minimum),
    "mul.Scalar": _product,
    "mul.Tensor": _product,
    "ne.Scalar": _compared(op.not_equal),
    "ne.Tensor": _compared(op.not_equal),
    "neg.default": _unary(op.negative),
    "pow.Scalar": _power,
    "pow.Tensor_Scalar": _power,
    "pow.Tensor_Tensor": _power,
    "reciprocal.default": _unary(lambda x: op.divide(constant(1, str(x.ty.dtype)), x)),
    "relu.default": _unary(op.nn.relu),
    "round.default": _fixed(op.round),
    "rsqrt.default": _unary(lambda x: op.divide(constant(1, str(x.ty.dtype)), op.sqrt(x))),
    "rsub.Scalar": _binary(op.subtract, swapped=True),
    "sigmoid.default": _unary(op.sigmoid),
    "sign.default": _fixed(op.sign),
    "silu.default": _unary(op.nn.silu),
    "sin.default": _unary(op.sin),
    "softmax.int": _softmax(op.nn.softmax),
    "sqrt.default": _unary(op.sqrt),
    "square.default": _unary(lambda x: op.multiply(x, x)),
    "sub.Scalar": _binary(op.subtract),
    "sub.Tensor": _binary(op.subtract),
    "sum.default": _reduced(op.sum),
    "sum.dim_IntList": _reduced(op.sum),
    "tanh.default": _unary(op.tanh),
    "trunc.default": _fixed(op.trunc),
    "type_as.default": _cast,
    "where.Scalar": _where,
    "where.ScalarOther": _where,
    "where.ScalarSelf": _where,
    "where.self": _where,
    **{f"std.{o}": _variance(root=True) for o in _OVERLOADS},
    **{f"std_mean.{o}": _variance(root=True, with_mean=True) for o in _OVERLOADS},
    **{f"var.{o}": _variance(root=False) for o in _OVERLOADS},
    **{f"var_mean.{o}": _variance(root=False, with_mean=True) for o in _OVERLOADS},
}
"""ATen overload -> builder."""
