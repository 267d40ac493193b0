"""Operators of one element at a time, broadcast where they have two arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...dtypes import numpy_dtype
from ...ops.elementwise import Elementwise, by
from ..types import TensorType, Type
from . import relations
from .facts import BROADCAST, ELEMWISE, FOLLOW, NEVER
from .relations import bounds
from .table import REQUIRED, Attr, Builder, Call, Site, constant_value, define, show

R = relax.op


def _apply(function: Callable[..., Any]) -> Builder:
    return lambda site: function(*site.args)


def _round(s: Site) -> Any:
    """Halves away from zero, as Relay does; Relax's own goes to even."""
    x = s.args[0]
    if not s.tensor().is_float:
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
        if s.tensor(0).is_float:
            # TVM takes a scalar constant into the expression, and refuses to write x / 0 there.
            if value is None or value.ndim or value.item() != 0:
                return function(lhs, rhs)
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
    real = s.tensor(0).is_float
    return _divided(_truncated if real else R.divide)(s)


def _power(s: Site) -> Any:
    if not s.tensor(0).is_float:
        s.fail(f"only of floating types has it a form, got {show(s.tensor(0))}")
    return R.power(*s.args)


def _as_bool(s: Site, index: int) -> Any:
    """An argument as a condition: not zero."""
    if s.tensor(index).dtype == "bool":
        return s.args[index]
    return s.emit(R.not_equal(s.args[index], s.const(0, index)))


def _clip(s: Site) -> Any:
    low, high = s.attrs["a_min"], s.attrs["a_max"]
    if not s.tensor().is_float:
        least, most = bounds(s.tensor().dtype)
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
    if s.result_type.dtype == s.tensor().dtype:
        return s.args[0]
    value = constant_value(s.args[0])
    if value is not None and not value.ndim:
        # TVM's way with scalars refuses 200 as an int8; C, and Relay's kernels, wrap around.
        with np.errstate(all="ignore"):
            return relax.const(tvm.runtime.tensor(value.astype(numpy_dtype(s.result_type.dtype))))
    return R.astype(s.args[0], s.result_type.dtype)


# What Relay means by a name, where it is not what the record builds.
_OWN: dict[str, Builder] = {
    "divide": _divided(R.divide),
    "floor_divide": _divided(R.floor_divide),
    "floor_mod": _divided(R.floor_mod, rest=True),
    "mod": _divided(R.mod, rest=True),
    "power": _power,
    "round": _round,
}
# Relay's levels of support of those that are not of the first, and its rules of precision.
_LEVELS = {3: "abs ceil floor isfinite isinf isnan negative round sign trunc",
           4: "left_shift maximum minimum power right_shift"}  # fmt: skip
_PRECISIONS = {
    FOLLOW: """add divide greater greater_equal less less_equal maximum minimum multiply nn.relu
        sigmoid sqrt subtract tanh""",
    NEVER: "erf exp power",
}
_LEVEL, _PRECISION = (
    {name: value for value, names in table.items() for name in names.split()}
    for table in (_LEVELS, _PRECISIONS)
)
# Against which the results are compared, where that is not NumPy.
_CHECKED = {
    **dict.fromkeys(("add", "divide", "less", "multiply", "negative", "nn.relu", "sqrt", "tanh"),
                    "relay"),
    "erf": "torch",
}  # fmt: skip


_OPERANDS = {
    1: "on each element of a tensor",
    2: "on the elements of two tensors, which broadcast as NumPy's do",
}


def _doc(name: str, operands: int) -> str:
    return f"The operator `{name}` {_OPERANDS[operands]}."


def _of_record(record: Elementwise) -> Builder:
    return lambda s: record.apply(s.emit, *s.args)


def _relation(record: Elementwise) -> Callable[[Call], Type]:
    """One operand's type, or two's that broadcast; truth values where it takes or gives them."""
    is_unary = record.operands == 1
    if record.gives == "bool":
        return relations.predicate if is_unary else relations.comparison
    rule = relations.identity if is_unary else relations.binary
    return _bool_type(rule) if record.takes == "b" else rule


for _name, _record in by("relay").items():
    _of_bits = "b" in _record.takes or (_record.gives == "bool" and _record.operands == 2)
    define(_name, "data" if _record.operands == 1 else "lhs rhs", _relation(_record),
           _OWN.get(_name) or _of_record(_record), _CHECKED.get(_name, "numpy"),
           kind=ELEMWISE if _record.operands == 1 else BROADCAST, operands=_record.operands,
           level=_LEVEL.get(_name, 4 if _of_bits else 1), precision=_PRECISION.get(_name),
           doc=_doc(_name, _record.operands))  # fmt: skip
for _name, _fills in (("zeros_like", 0), ("ones_like", 1)):
    define(_name, "data", relations.identity, _apply(getattr(R, _name)), "relay",
           kind=ELEMWISE, level=4, fills=_fills, doc=_doc(_name, 1))  # fmt: skip
define("copy", "data", relations.identity, lambda s: s.args[0], "numpy", kind=ELEMWISE, level=3,
       precision=FOLLOW, operands=1, doc=_doc("copy", 1))  # fmt: skip
for _name, _build in (
    ("trunc_divide", _trunc_divide), ("trunc_mod", _divided(R.mod, rest=True)),
):  # fmt: skip
    define(_name, "lhs rhs", relations.binary, _build, "numpy", kind=BROADCAST, level=1, operands=2,
           doc=_doc(_name, 2))  # fmt: skip
define("clip", "data", _clip_type, _clip, "numpy",
       Attr("a_min", REQUIRED, "float"), Attr("a_max", REQUIRED, "float"),
       kind=ELEMWISE, level=3, precision=FOLLOW, operands=1,
       signature="a: data, a_min, a_max",
       doc="The elements, but none below `a_min` or above `a_max`.")  # fmt: skip
define("where", "condition x y", _where_type, _where, "relay",
       kind=BROADCAST, level=4, precision=FOLLOW, operands=3,
       doc="`x` where the condition holds, else `y`; all broadcast.")  # fmt: skip
define("cast", "data", _cast_type, _cast, "numpy", Attr("dtype", REQUIRED, "dtype"),
       kind=ELEMWISE, level=3, precision=FOLLOW, operands=1,
       doc="The elements in another dtype.")  # fmt: skip
define("cast_like", "data dtype_like", _cast_like_type, _cast, "numpy",
       kind=ELEMWISE, level=3, precision=FOLLOW, operands=1,
       doc="The elements in another tensor's dtype.")  # fmt: skip
