"""Operators of one element at a time, broadcast where they have two arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...dtypes import numpy_dtype
from ...ir import compared
from ..types import TensorType, Type
from . import relations
from .relations import bounds
from .table import REQUIRED, Attr, Builder, Call, Site, constant_value, define, show

R = relax.op


def _apply(function: Callable[..., Any]) -> Builder:
    return lambda site: function(*site.args)


def _compared(function: Callable[..., Any]) -> Builder:
    return lambda site: compared(function, *site.args)


def _log_base(base: float) -> Builder:
    # log alone has a gradient in Relax.
    return lambda s: R.multiply(s.emit(R.log(s.args[0])), s.const(1 / math.log(base)))


def _rsqrt(s: Site) -> Any:
    return R.divide(s.const(1.0), s.emit(R.sqrt(s.args[0])))


def _round(s: Site) -> Any:
    """Halves away from zero, as Relay does; Relax's own goes to even."""
    x = s.args[0]
    if not s.tensor().dtype.startswith(("float", "bfloat")):
        return x
    # What trunc leaves is exact, and NaN for an infinity, which stays; x + 0.5 would be rounded.
    whole = s.emit(R.trunc(x))
    left = s.emit(R.abs(s.emit(R.subtract(x, whole))))
    away = s.emit(R.add(whole, s.emit(R.sign(x))))
    return R.where(s.emit(R.greater_equal(left, s.const(0.5))), away, whole)


def _divided(function: Callable[..., Any], rest: bool = False) -> Builder:
    """Division, or what it leaves (`rest`), defined for every divisor.

    A processor stops the process where an integer is divided by zero, or the least one by -1: the
    first is 0 here, as in NumPy, the second wraps around.
    """

    def build(s: Site) -> Any:
        lhs, rhs = s.args
        value = constant_value(rhs)
        if s.tensor(0).dtype.startswith(("float", "bfloat")):
            # TVM takes a scalar constant into the expression, and refuses to write x / 0 there.
            if value is None or value.ndim or value.item() != 0:
                return function(lhs, rhs)
            assert isinstance(s.out, TensorType)
            zero = relax.const(tvm.runtime.tensor(value.reshape((1,))))
            wide = s.emit(function(lhs, zero))
            return wide if s.tensor(0).shape else s.reshape(wide, ())
        signed = s.tensor(0).dtype.startswith("int")
        if value is not None and value.all() and not (signed and (value == -1).any()):
            return function(lhs, rhs)
        zero, one = s.const(0, 1), s.const(1, 1)
        bad = by_zero = s.emit(R.equal(rhs, zero))
        if signed:
            minus = s.emit(R.equal(rhs, s.const(-1, 1)))
            bad = s.emit(R.logical_or(by_zero, minus))
        out = s.emit(function(lhs, s.emit(R.where(bad, one, rhs))))
        if signed and not rest:
            out = s.emit(R.where(minus, s.emit(R.subtract(zero, lhs)), out))
        return R.where(by_zero, zero, out)

    return build


def _truncated(lhs: Any, rhs: Any) -> Any:
    return R.trunc(R.divide(lhs, rhs))


def _trunc_divide(s: Site) -> Any:
    """Towards zero, as integer division in C is."""
    real = s.tensor(0).dtype.startswith(("float", "bfloat"))
    return _divided(_truncated if real else R.divide)(s)


def _power(s: Site) -> Any:
    if not s.tensor(0).dtype.startswith(("float", "bfloat")):
        s.fail(f"only of floating types has it a form, got {show(s.tensor(0))}")
    return R.power(*s.args)


def _as_bool(s: Site, index: int) -> Any:
    """An argument as a condition: not zero."""
    if s.tensor(index).dtype == "bool":
        return s.args[index]
    return s.emit(R.not_equal(s.args[index], s.const(0, index)))


def _clip(s: Site) -> Any:
    dtype = s.tensor().dtype
    low, high = s.attrs["a_min"], s.attrs["a_max"]
    if not dtype.startswith(("float", "bfloat")):
        least, most = bounds(dtype)
        low, high = (int(min(max(end, least), most)) for end in (low, high))
    # Two steps with a gradient each, which clip has not.
    return R.minimum(s.emit(R.maximum(s.args[0], s.const(low))), s.const(high))


def _clip_type(call: Call) -> Type:
    for name in ("a_min", "a_max"):
        if math.isnan(call.attrs[name]):
            call.fail(f"{name} must be a number, got {call.attrs[name]}")
    return call.tensor()


def _where_type(call: Call) -> Type:
    condition, x, y = (call.tensor(i) for i in range(3))
    if x.dtype != y.dtype:
        call.fail(f"x and y must have the same dtype: {x.dtype} vs {y.dtype}")
    both = relations.broadcast(call, x, y, x.dtype)
    return relations.broadcast(call, condition, both, x.dtype)


def _where(s: Site) -> Any:
    return R.where(_as_bool(s, 0), s.args[1], s.args[2])


def _bool_type(rule: Callable[[Call], Type]) -> Callable[[Call], Type]:
    """A rule whose arguments must be bool."""

    def relation(call: Call) -> Type:
        for i, name in enumerate(call.inputs):
            if call.tensor(i).dtype != "bool":
                call.fail(f"{name} must be bool, got {show(call.tensor(i))}")
        return rule(call)

    return relation


def _cast_type(call: Call) -> Type:
    dtype = call.attrs["dtype"]
    if dtype is None:
        call.fail("attribute dtype is missing")
    return TensorType(call.tensor(0).shape, dtype)


def _cast_like_type(call: Call) -> Type:
    return TensorType(call.tensor(0).shape, call.tensor(1).dtype)


def _cast(s: Site) -> Any:
    assert isinstance(s.out, TensorType)
    if s.out.dtype == s.tensor().dtype:
        return s.args[0]
    value = constant_value(s.args[0])
    if value is not None and not value.ndim:
        # TVM's way with scalars refuses 200 as an int8; C, and Relay's kernels, wrap around.
        with np.errstate(all="ignore"):
            return relax.const(tvm.runtime.tensor(value.astype(numpy_dtype(s.out.dtype))))
    return R.astype(s.args[0], s.out.dtype)


# name, Relax, checked, differentiable
_UNARY: tuple[tuple[str, Builder, str, bool], ...] = (
    ("negative", _apply(R.negative), "relay", True),
    ("sqrt", _apply(R.sqrt), "relay", True),
    ("tanh", _apply(R.tanh), "relay", True),
    ("nn.relu", _apply(R.nn.relu), "relay", True),
    ("zeros_like", _apply(R.zeros_like), "relay", True),
    ("ones_like", _apply(R.ones_like), "relay", True),
    ("copy", lambda s: s.args[0], "numpy", True),
    ("abs", _apply(R.abs), "numpy", True),
    ("exp", _apply(R.exp), "numpy", True),
    ("log", _apply(R.log), "numpy", True),
    ("log2", _log_base(2), "numpy", True),
    ("log10", _log_base(10), "numpy", True),
    ("sigmoid", _apply(R.sigmoid), "numpy", True),
    ("rsqrt", _rsqrt, "numpy", True),
    ("sin", _apply(R.sin), "numpy", True),
    ("cos", _apply(R.cos), "numpy", True),
    ("tan", _apply(R.tan), "numpy", False),
    ("sinh", _apply(R.sinh), "numpy", False),
    ("cosh", _apply(R.cosh), "numpy", False),
    ("asin", _apply(R.asin), "numpy", False),
    ("acos", _apply(R.acos), "numpy", False),
    ("atan", _apply(R.atan), "numpy", False),
    ("asinh", _apply(R.asinh), "numpy", False),
    ("acosh", _apply(R.acosh), "numpy", False),
    ("atanh", _apply(R.atanh), "numpy", False),
    ("erf", _apply(R.erf), "torch", False),
    ("sign", _apply(R.sign), "numpy", False),
    ("floor", _apply(R.floor), "numpy", False),
    ("ceil", _apply(R.ceil), "numpy", False),
    ("trunc", _apply(R.trunc), "numpy", False),
    ("round", _round, "numpy", False),
    ("bitwise_not", _apply(R.bitwise_not), "numpy", False),
)
for _name, _builder, _checked, _grad in _UNARY:
    define(_name, "data", relations.identity, _builder, _checked, grad=_grad)

define("logical_not", "data", _bool_type(relations.identity), _apply(R.logical_not), "numpy",
       grad=False)  # fmt: skip
for _name in ("isnan", "isfinite", "isinf"):
    define(_name, "data", relations.predicate, _apply(getattr(R, _name)), "numpy", grad=False)

_BINARY: tuple[tuple[str, Builder, str, bool], ...] = (
    ("add", _apply(R.add), "relay", True),
    ("subtract", _apply(R.subtract), "numpy", True),
    ("multiply", _apply(R.multiply), "relay", True),
    ("divide", _divided(R.divide), "relay", True),
    ("power", _power, "numpy", True),
    ("maximum", _apply(R.maximum), "numpy", True),
    ("minimum", _apply(R.minimum), "numpy", True),
    ("floor_divide", _divided(R.floor_divide), "numpy", False),
    ("floor_mod", _divided(R.floor_mod, rest=True), "numpy", False),
    ("trunc_divide", _trunc_divide, "numpy", False),
    ("trunc_mod", _divided(R.mod, rest=True), "numpy", False),
    ("mod", _divided(R.mod, rest=True), "numpy", False),
    ("left_shift", _apply(R.left_shift), "numpy", False),
    ("right_shift", _apply(R.right_shift), "numpy", False),
    ("bitwise_and", _apply(R.bitwise_and), "numpy", False),
    ("bitwise_or", _apply(R.bitwise_or), "numpy", False),
    ("bitwise_xor", _apply(R.bitwise_xor), "numpy", False),
)
for _name, _builder, _checked, _grad in _BINARY:
    define(_name, "lhs rhs", relations.binary, _builder, _checked, grad=_grad)

for _name in ("logical_and", "logical_or", "logical_xor"):
    define(_name, "lhs rhs", _bool_type(relations.binary), _apply(getattr(R, _name)), "numpy",
           grad=False)  # fmt: skip
for _name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
    define(_name, "lhs rhs", relations.comparison, _compared(getattr(R, _name)),
           "relay" if _name == "less" else "numpy", grad=False)  # fmt: skip

define("clip", "data", _clip_type, _clip, "numpy",
       Attr("a_min", REQUIRED, "float"), Attr("a_max", REQUIRED, "float"))  # fmt: skip
define("where", "condition x y", _where_type, _where, "relay")
define("cast", "data", _cast_type, _cast, "numpy", Attr("dtype", REQUIRED, "dtype"))
define("cast_like", "data dtype_like", _cast_like_type, _cast, "numpy")
