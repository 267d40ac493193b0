"""Functions of floating-point numbers that TVM's targets lack, or have with few right digits.

CUDA and LLVM know none of some functions in half precision, where TVM calls them by names that
they would have: float32's are taken, and for sigmoid, whose exponential has no place in float16.
On a CPU TVM computes tanh and atanh by exponentials and
logarithms, which near 0 leaves nothing of the result; here it is what Cephes does, with
polynomials there.

CUDA's erff has a branch, behind which nvcc does not see that two of the same argument are equal: a
kernel that uses GELU's result three times computed it three times.  Where tensors are of half
precision erf is an approximation without one, and so are exp and sigmoid, a division in full less:
wrong by some 1e-6 of the result, far less than what a half rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_walk
from tvm_ffi.structural import VisitInterrupt, WalkResult

_LACKING = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "nearbyint", "round", "sinh")
# By target and type: which are computed in float32.
_WIDE = {
    ("cuda", "float16"): (*_LACKING, "sigmoid"),
    ("cuda", "bfloat16"): _LACKING,
    ("llvm", "float16"): (*_LACKING, "atan", "erf", "rsqrt", "sigmoid", "tan", "tanh"),
    ("llvm", "bfloat16"): ("atanh", "tanh"),
}
# tanh(x) = x + x z P(z) / Q(z) with z = x^2 below this, highest coefficients first.
_NEAR = 0.625
_P = {
    "float32": (
        -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
        -3.33332819422e-1,
    ),
    "float64": (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3),
}  # fmt: skip
_Q = {
    "float64": (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
}
# erf by Abramowitz and Stegun 7.1.26: 1 - t P(t) exp(-x^2), t = 1 / (1 + c x), absolute error 2e-7;
# below _SERIES, where that is no small part of the result, by its series, x S(x^2).
_FALL = 0.3275911
_TAIL = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_SERIES = 0.5
_NEAR_ZERO = tuple(
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(5, -1, -1)
)


# Expressions are trees, in which x is there 25 times: of more than so many, and so of another tanh,
# it is the C library's, which is no vector.
_FEW = 24


def right_function(call: Any, target: str, rounded: bool = False) -> Any:
    """What a call of a function is to be on a target ("cuda" or "llvm"): itself, if it is right.

    rounded : on CUDA, of a kernel whose tensors are of half precision.
    """
    name = str(getattr(call.op, "name", "")).removeprefix("tirx.")
    dtype = str(getattr(call.ty, "dtype", ""))  # a pointer has none
    if rounded and target == "cuda" and dtype == "float32" and name in _APPROXIMATE:
        return _APPROXIMATE[name](call.args[0])
    if name in _WIDE.get((target, dtype), ()):
        wide = tirx.call_intrin("float32", call.op, *(x.astype("float32") for x in call.args))
        return right_function(wide, target, rounded).astype(dtype)
    if target != "llvm" or dtype not in _P:
        return call
    if name == "tanh":
        return _tanh(call.args[0], dtype)
    if name == "atanh":
        return tirx.call_pure_extern(dtype, "atanhf" if dtype == "float32" else name, *call.args)
    return call


def _polynomial(coefficients: Sequence[float], z: Any) -> Any:
    dtype = str(z.ty.dtype)
    result = tirx.const(coefficients[0], dtype)
    for value in coefficients[1:]:
        result = result * z + tirx.const(value, dtype)
    return result


def _quick_exp(x: Any) -> Any:
    return tirx.call_pure_extern("float32", "__expf", x)


def _quick_sigmoid(x: Any) -> Any:
    one = tirx.const(1.0, "float32")
    return tirx.call_pure_extern("float32", "__fdividef", one, _quick_exp(x * -one) + one)


def beside_a_number(node: Any) -> Any:
    """Of a kernel of halves a number plus erf, or a share of it, as in GELU: where erf is small it
    need not be told from 0 to many digits, so its series is left out."""
    for number, other in ((node.a, node.b), (node.b, node.a)):
        if not isinstance(number, tirx.FloatImm) or abs(number.value) < _SERIES:
            continue
        if _is_erf(other):
            return number + _quick_erf(other.args[0], series=False)
        if isinstance(other, tirx.Mul):
            for share, erf in ((other.a, other.b), (other.b, other.a)):
                if isinstance(share, tirx.FloatImm) and abs(share.value) <= 1 and _is_erf(erf):
                    return number + _quick_erf(erf.args[0], series=False) * share
    return node


def _is_erf(value: Any) -> bool:
    named = isinstance(value, tvm.ir.Call) and str(getattr(value.op, "name", "")) == "tirx.erf"
    return named and str(value.ty.dtype) == "float32"


def _quick_erf(value: Any, series: bool = True) -> Any:
    """Without a branch: of equal arguments nvcc computes one."""

    def number(value: float) -> Any:
        return tirx.const(value, "float32")

    names = ("x", "square", "t", "near", "far")
    x, square, t, near, far = (tirx.Var(name, "float32") for name in names)
    fall = number(_FALL) * tirx.abs(x) + number(1.0)
    tail = _polynomial(_TAIL, t) * t * _quick_exp(square * number(-1.0))
    # Both are there before one is chosen: what a choice computes is a branch.
    result = tirx.Select(tirx.abs(x) < number(_SERIES), near, far) if series else far
    for variable, bound in (
        (far, tirx.call_pure_extern("float32", "copysignf", number(1.0) + tail * number(-1.0), x)),
        *([(near, x * _polynomial(_NEAR_ZERO, square))] if series else []),
        (t, tirx.call_pure_extern("float32", "__fdividef", number(1.0), fall)),
        (square, x * x),
        (x, value),
    ):
        result = tirx.Let(variable, bound, result)
    return result


_APPROXIMATE: dict[str, Callable[[Any], Any]] = {
    "erf": _quick_erf, "exp": _quick_exp, "sigmoid": _quick_sigmoid,
}  # fmt: skip


def _tanh(x: Any, dtype: str) -> Any:
    if _is_long(x):
        return tirx.call_pure_extern(dtype, "tanhf" if dtype == "float32" else "tanh", x)

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    z = x * x
    ratio = _polynomial(_P[dtype], z)
    if dtype in _Q:
        ratio = ratio / _polynomial(_Q[dtype], z)
    size = tirx.abs(x)
    far = number(1.0) + number(-2.0) / (tirx.exp(size + size) + number(1.0))
    far = tirx.Select(x < number(0.0), far * number(-1.0), far)
    return tirx.Select(size >= number(_NEAR), far, x + x * z * ratio)


def _is_long(value: Any) -> bool:
    """Whether an expression has more than a few of floating-point numbers, as a tree."""
    found = 0

    def visit(node: Any) -> Any:
        nonlocal found
        found += "float" in str(getattr(node.ty, "dtype", ""))
        return VisitInterrupt(True) if found > _FEW else WalkResult.ADVANCE

    structural_walk(value, [(tvm.ir.Expr, visit)], order="pre")
    return found > _FEW
