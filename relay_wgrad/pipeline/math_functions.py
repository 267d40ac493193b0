"""Functions of floating-point numbers that TVM's targets lack, or have with few right digits.

CUDA and LLVM know none of some functions in half precision, where TVM calls them by names that
they would have: float32's are taken, and for sigmoid, whose exponential has no place in float16.
On a CPU TVM computes tanh and atanh by exponentials and
logarithms, which near 0 leaves nothing of the result; here it is what Cephes does, with
polynomials there.
"""

from __future__ import annotations

from collections.abc import Sequence
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


# Expressions are trees, in which x is there 25 times: of more than so many, and so of another tanh,
# it is the C library's, which is no vector.
_FEW = 24


def right_function(call: Any, target: str) -> Any:
    """What a call of a function is to be on a target ("cuda" or "llvm"): itself, if it is right."""
    name = str(getattr(call.op, "name", "")).removeprefix("tirx.")
    dtype = str(getattr(call.ty, "dtype", ""))  # a pointer has none
    if name in _WIDE.get((target, dtype), ()):
        wide = tirx.call_intrin("float32", call.op, *(x.astype("float32") for x in call.args))
        return right_function(wide, target).astype(dtype)
    if target != "llvm" or dtype not in _P:
        return call
    if name == "tanh":
        return _tanh(call.args[0], dtype)
    if name == "atanh":
        return tirx.call_pure_extern(dtype, "atanhf" if dtype == "float32" else name, *call.args)
    return call


def _tanh(x: Any, dtype: str) -> Any:
    if _is_long(x):
        return tirx.call_pure_extern(dtype, "tanhf" if dtype == "float32" else "tanh", x)

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    def polynomial(coefficients: Sequence[float], z: Any) -> Any:
        result = number(coefficients[0])
        for value in coefficients[1:]:
            result = result * z + number(value)
        return result

    z = x * x
    ratio = polynomial(_P[dtype], z)
    if dtype in _Q:
        ratio = ratio / polynomial(_Q[dtype], z)
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
