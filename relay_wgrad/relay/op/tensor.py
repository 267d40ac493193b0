"""Operators on each element, of one argument or of two that broadcast, and tensors put together."""

# ruff: noqa: A001  Relay's names
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..ast import Call, Expr, Tuple
from ..expr import TupleWrapper
from ..expr_methods import ExprMethods
from ..make import call, of_run
from .transform import Sizes

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "clip",
    "concatenate",
    "copy",
    "cos",
    "cosh",
    "divide",
    "einsum",
    "equal",
    "erf",
    "exp",
    "floor",
    "floor_divide",
    "floor_mod",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log2",
    "log10",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "ones",
    "ones_like",
    "power",
    "right_shift",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "stack",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "trunc_divide",
    "trunc_mod",
    "zeros",
    "zeros_like",
]


class Unary(Protocol):
    """A builder of one argument."""

    def __call__(self, data: Expr) -> Call: ...


class Binary(Protocol):
    """A builder of two arguments."""

    def __call__(self, lhs: Expr, rhs: Expr) -> Call: ...


def _unary(name: str) -> Unary:
    def build(data: Expr) -> Call:
        return call(name, data)

    return _named(build, name, f"The operator `{name}` on each element of a tensor.")


def _binary(name: str) -> Binary:
    def build(lhs: Expr, rhs: Expr) -> Call:
        return call(name, lhs, rhs)

    doc = f"The operator `{name}` on the elements of two tensors, which broadcast as NumPy's do."
    return _named(build, name, doc)


def _named(build: Any, name: str, doc: str) -> Any:
    build.__name__ = build.__qualname__ = name
    build.__doc__ = doc
    return build


abs = _unary("abs")
acos = _unary("acos")
acosh = _unary("acosh")
asin = _unary("asin")
asinh = _unary("asinh")
atan = _unary("atan")
atanh = _unary("atanh")
bitwise_not = _unary("bitwise_not")
ceil = _unary("ceil")
copy = _unary("copy")
cos = _unary("cos")
cosh = _unary("cosh")
erf = _unary("erf")
exp = _unary("exp")
floor = _unary("floor")
isfinite = _unary("isfinite")
isinf = _unary("isinf")
isnan = _unary("isnan")
log = _unary("log")
log10 = _unary("log10")
log2 = _unary("log2")
logical_not = _unary("logical_not")
negative = _unary("negative")
ones_like = _unary("ones_like")
round = _unary("round")
rsqrt = _unary("rsqrt")
sigmoid = _unary("sigmoid")
sign = _unary("sign")
sin = _unary("sin")
sinh = _unary("sinh")
sqrt = _unary("sqrt")
tan = _unary("tan")
tanh = _unary("tanh")
trunc = _unary("trunc")
zeros_like = _unary("zeros_like")

add = _binary("add")
bitwise_and = _binary("bitwise_and")
bitwise_or = _binary("bitwise_or")
bitwise_xor = _binary("bitwise_xor")
divide = _binary("divide")
equal = _binary("equal")
floor_divide = _binary("floor_divide")
floor_mod = _binary("floor_mod")
greater = _binary("greater")
greater_equal = _binary("greater_equal")
left_shift = _binary("left_shift")
less = _binary("less")
less_equal = _binary("less_equal")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
maximum = _binary("maximum")
minimum = _binary("minimum")
mod = _binary("mod")
multiply = _binary("multiply")
not_equal = _binary("not_equal")
power = _binary("power")
right_shift = _binary("right_shift")
subtract = _binary("subtract")
trunc_divide = _binary("trunc_divide")
trunc_mod = _binary("trunc_mod")


def zeros(shape: Sizes, dtype: str) -> Call:
    """A tensor of zeros."""
    if of_run(shape):
        return call("dyn.zeros", shape, dtype=dtype)
    return call("zeros", shape=shape, dtype=dtype)


def ones(shape: Sizes, dtype: str) -> Call:
    """A tensor of ones."""
    if of_run(shape):
        return call("dyn.ones", shape, dtype=dtype)
    return call("ones", shape=shape, dtype=dtype)


def clip(a: Expr, a_min: float, a_max: float) -> Call:
    """The elements, but none below `a_min` or above `a_max`."""
    return call("clip", a, a_min=a_min, a_max=a_max)


def einsum(data: Sequence[Expr], equation: str) -> Call:
    """Products of the tensors, summed over the letters that the result of `equation` has not."""
    return call("einsum", Tuple(tuple(data)), equation=equation)


def concatenate(data: Expr | Sequence[Expr] | TupleWrapper, axis: int) -> Call:
    """Tensors one after another along an axis.

    Raises ValueError for an empty list.
    """
    return call("concatenate", _tuple("concatenate", data), axis=axis)


def stack(data: Expr | Sequence[Expr] | TupleWrapper, axis: int) -> Call:
    """Tensors of one shape along a new axis.

    Raises ValueError for an empty list.
    """
    return call("stack", _tuple("stack", data), axis=axis)


def _tuple(name: str, data: Any) -> Any:
    if isinstance(data, ExprMethods):
        return data
    if not isinstance(data, (Sequence, TupleWrapper)):
        raise TypeError(f"{name}: data must be a tuple of Relay expressions, got {data!r}")
    if not data:
        raise ValueError(f"{name}: data must not be empty, got {data!r}")
    return Tuple(tuple(data))
