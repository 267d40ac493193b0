"""ATen's arithmetic as ops that have a gradient: elementwise, comparisons, sums, products, orders.

Operands are brought to the dtype in which PyTorch combines them.  To add an op, write one row, and
a case for it in `tests/support/torch/op_cases.py`, which compares value and gradient with
autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from ...dtypes import FLOATS
from ...ir import constant
from ...ops.elementwise import RECORDS
from .. import activations as act
from .. import arithmetic
from ..context import Context, shape_of
from ..sizes import is_open, number
from ..sorting import ordered
from .call import Builder, Call, as_dtype
from .elementwise import ELEMENTWISE, binary
from .names import op_of

op = relax.op


_multiply, _divide = binary(RECORDS["multiply"]), binary(RECORDS["divide"])


def _multiplied(ctx: Context, call: Call) -> Any:
    """x y.  torch.export writes softshrink's middle as x * 0: PyTorch's gradient there is 0, also
    where what comes from behind is infinite."""
    _, origin = (call.node.meta.get("torch_fn") if call.node else None) or ("", "")
    if origin == "builtin_function_or_method.softshrink" and call.arg(1) == 0:
        return ctx.emit(op.multiply(op.grad.no_grad(call.args[0]), ctx.const(0.0)))
    return _multiply(ctx, call)


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


def softmax(function: Callable[[Any, int], Any]) -> Builder:
    """Along an axis; half precision may become float."""

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
        return _divide(ctx, call)
    a, b = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
    if mode == "floor" and call.dtype in _INTEGERS:
        return ctx.emit(op.floor_divide(a, b))
    if call.dtype in _INTEGERS:
        raise ValueError(f"rounding_mode={mode!r} of {call.dtype} is not supported")
    if mode == "floor":
        return arithmetic.floor_quotient(ctx, a, b)
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


def variance(root: bool, with_mean: bool = False, few: bool = False) -> Builder:
    """The mean square from the mean, over n - correction, or its root; and the mean.

    few : of too few values it is what the division gives; else that is refused.
    """

    def build(ctx: Context, call: Call) -> Any:
        x, (axes, correction, keep) = call.args[0], _spread(call)
        counted = [shape_of(x)[a] for a in axes]
        if not few and not is_open(counted) and math.prod(counted) <= correction:
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


# ---- along axes, remainders ----------------------------------------------------------------------


def _remainder(floor: bool) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        x, y = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
        if "float" not in call.dtype:
            if not floor:
                raise ValueError(f"of {call.dtype} is not supported")
            return ctx.emit(op.floor_mod(x, y))
        return arithmetic.remainder(ctx, x, y, floor)

    return build


def _prod(ctx: Context, call: Call) -> Any:
    """(x), or (x, axis, keepdim); of PyTorch's primitive the axes are a list."""
    x = as_dtype(ctx, call.args[0], call.dtype)
    axis = call.arg(1)
    axes = list(range(len(shape_of(x)))) if axis is None else axis
    axes = [int(a) for a in (axes if isinstance(axes, (list, tuple)) else [axes])]
    return arithmetic.product(ctx, x, axes, bool(call.arg(2, False)))


def _running_sum(ctx: Context, call: Call) -> Any:
    x = as_dtype(ctx, call.args[0], call.dtype)
    return arithmetic.running_sum(ctx, x, int(call.args[1]) % len(call.shape))


def _extreme_place(function: Callable[..., Any]) -> Builder:
    """(x, axis, keepdim), or of all elements: the first of equal ones."""

    def build(ctx: Context, call: Call) -> Any:
        x, axis = call.args[0], call.arg(1)
        keep = bool(call.arg(2, False))
        if axis is not None:
            return ctx.emit(function(x, int(axis) % len(shape_of(x)), keepdims=keep))
        flat = ctx.emit(op.reshape(x, (-1,)))
        return ctx.emit(op.reshape(ctx.emit(function(flat, 0)), call.shape))

    return build


def _xlogy(ctx: Context, call: Call) -> Any:
    """x log(y), and 0 where x is 0, whatever y but NaN."""
    x, y = (as_dtype(ctx, call.args[i], call.dtype) for i in range(2))
    none = op.equal(x, constant(0, call.dtype))
    none = ctx.emit(op.logical_and(none, op.logical_not(op.isnan(y))))
    return ctx.emit(op.multiply(x, op.log(op.where(none, constant(1, call.dtype), y))))


def _largest(ctx: Context, call: Call) -> tuple[Any, Any]:
    """(x, count, axis, whether the largest, whether in order): always in order here."""
    call.arg(4)
    count, axis = int(call.args[1]), int(call.arg(2, -1))
    return ordered(ctx, call.args[0], axis, count, descending=bool(call.arg(3, True)))


def _sorted(ctx: Context, call: Call) -> tuple[Any, Any]:
    """(x, axis, descending), of the stable overload by keywords."""
    call.setting("stable")
    axis = call.setting("dim", call.arg(1, -1))
    descending = call.setting("descending", call.arg(2, False))
    return ordered(ctx, call.args[0], int(axis), descending=bool(descending))


def _sorted_places(ctx: Context, call: Call) -> Any:
    return _sorted(ctx, call)[1]


# ---- types ---------------------------------------------------------------------------------------


def cast(ctx: Context, call: Call) -> Any:
    """A change of dtype; to an integer and back no gradient flows."""
    call.args[1:]
    return as_dtype(ctx, call.args[0], call.dtype)


def identity(ctx: Context, call: Call) -> Any:
    """x."""
    return call.args[0]


def _stopped(ctx: Context, call: Call) -> Any:
    x = call.args[0]
    return ctx.emit(op.grad.no_grad(x)) if str(x.ty.dtype) in FLOATS else x


MATH: dict[str, Builder] = {
    **ELEMENTWISE,
    "_to_copy.default": cast,
    "addcdiv.default": _third(op.divide),
    "addcmul.default": _third(op.multiply),
    "alias.default": identity,
    "argmax.default": _extreme_place(op.argmax),
    "argmin.default": _extreme_place(op.argmin),
    "argsort.default": _sorted_places,
    "clone.default": identity,
    "cumsum.default": _running_sum,
    "detach.default": _stopped,
    "div.Scalar_mode": _divided,
    "div.Tensor_mode": _divided,
    "fmod.Scalar": _remainder(floor=False),
    "fmod.Tensor": _remainder(floor=False),
    "linalg_vector_norm.default": _norm,
    "log_softmax.int": softmax(op.nn.log_softmax),
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
    "mean.default": _reduced(op.mean),
    "mean.dim": _reduced(op.mean),
    "mul.Scalar": _multiplied,
    "mul.Tensor": _multiplied,
    "pow.Scalar": _power,
    "pow.Tensor_Scalar": _power,
    "pow.Tensor_Tensor": _power,
    "prod.default": _prod,
    "prod.dim_int": _prod,
    "remainder.Scalar": _remainder(floor=True),
    "remainder.Tensor": _remainder(floor=True),
    "rsub.Scalar": binary(RECORDS["subtract"], swapped=True),
    "softmax.int": softmax(op.nn.softmax),
    "sort.default": _sorted,
    "sort.stable": _sorted,
    "sum.default": _reduced(op.sum),
    "sum.dim_IntList": _reduced(op.sum),
    "topk.default": _largest,
    "type_as.default": cast,
    "where.Scalar": _where,
    "where.ScalarOther": _where,
    "where.ScalarSelf": _where,
    "where.self": _where,
    "xlogy.Tensor": _xlogy,
    **{f"std.{o}": variance(root=True) for o in _OVERLOADS},
    **{f"std_mean.{o}": variance(root=True, with_mean=True) for o in _OVERLOADS},
    **{f"var.{o}": variance(root=False) for o in _OVERLOADS},
    **{f"var_mean.{o}": variance(root=False, with_mean=True) for o in _OVERLOADS},
}
"""ATen overload -> builder."""
