"""Floating-point arithmetic that TVM's simplifier must not take for that of real numbers.

It makes 0 of x * 0, 0 / x and x - x, x of (x + y) - y and (x - c) + c, true of x == x, and b <= a
of not a < b: wrong for NaN and infinities, and (x + 1e30) - 1e30 is 0 and not x for any x.  In a
graph whose operators stay apart it sees little of that; where kernels are fused, most.  Here a
kernel says the same by expressions that the simplifier has no rules for and that a target's own
compiler, which knows floating-point numbers, makes single instructions of again.

Left alone: x + 0 and x - 0 become x, which forgets that -0 + 0 is +0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import tirx
from tvm_ffi import structural_map, structural_walk

from .. import keys
from ..dtypes import HALVES
from ..graph.rebuild import kernel_pass
from .bfloat16 import rounded
from .math_functions import beside_a_number, right_function

_WORDS = {"float32": "int32", "float64": "int64"}
_OF_BITS = {"float32": "__int_as_float", "float64": "__longlong_as_double"}
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def exact_floats(cuda: bool = False) -> tvm.transform.Pass:
    """A pass over the kernels of a module, after they are fused and scheduled.

    Those of convolutions, which are generated as they should be, stay as they are.  `cuda`: in
    CUDA's words, where TVM's are no C++.
    """
    target = "cuda" if cuda else "llvm"

    def change(func: tirx.PrimFunc) -> tirx.PrimFunc:
        if func.attrs and func.attrs.get(keys.SOURCE):
            return func
        rounds = cuda and _in_halves(func) and not _has_functions_of_vectors(func)
        function = partial(right_function, target=target, rounded=rounds)
        rules = [*_RULES, (tvm.ir.Call, function)]
        body = func.body if cuda else rounded(func)
        if rounds:  # before erf is another expression
            body = structural_map(body, [(tirx.Add, beside_a_number)])
        body = structural_map(body, rules)
        if cuda:  # of what the rules have written too
            body = structural_map(body, [(tvm.ir.Call, _bits), (tirx.FloatImm, _special)])
        return func if body.same_as(func.body) else func.with_body(body)

    return kernel_pass("exact_floats", change)


def _has_functions_of_vectors(func: Any) -> bool:
    """Whether a loop of vectors, which a rule of TVM's made, computes erf.

    What takes erf's place names parts of itself, and TVM cannot make vectors of names that it meets
    twice.
    """
    found: list[Any] = []

    def erf(call: Any) -> None:
        if str(getattr(call.op, "name", "")) == "tirx.erf":
            found.append(call)

    def loop(node: Any) -> None:
        if int(node.kind) == tirx.ForKind.VECTORIZED:
            structural_walk(node.body, (tvm.ir.Call, erf))

    structural_walk(func.body, (tirx.For, loop))
    return bool(found)


def _in_halves(func: Any) -> bool:
    """Whether the largest of a kernel's tensors are, or one of them is, of half precision, and none
    is of double: float32 is what is between reading and rounding."""
    buffers = [p.ty for p in func.params if isinstance(p.ty, tirx.buffer.BufferType)]
    sizes = [math.prod(int(n) for n in b.shape if isinstance(n, tirx.IntImm)) for b in buffers]
    large = [str(b.dtype) for b, n in zip(buffers, sizes, strict=True) if n == max(sizes)]
    return not set(HALVES).isdisjoint(large) and all(str(b.dtype) != "float64" for b in buffers)


def opaque_zero(zero: float, dtype: str) -> Any:
    """0.0 or -0.0, of which the simplifier does not know that it is zero."""
    bits = _WORDS.get(dtype)
    if bits is None:
        return opaque_zero(zero, "float32").astype(dtype)
    # Of the sign bit, since TVM takes the word 0 for a null pointer.
    minus = tirx.reinterpret(dtype, tirx.const(-(1 << (int(bits[3:]) - 1)), bits))
    return minus if math.copysign(1.0, zero) < 0 else tirx.Mul(minus, tirx.const(-1.0, dtype))


def _bits(node: Any) -> Any:
    """TVM writes `reinterpret` as a cast of an operand's address, and a number has none."""
    if getattr(node.op, "name", "") != "tirx.reinterpret" or not isinstance(
        node.args[0], tirx.IntImm
    ):
        return node
    dtype = str(node.ty.dtype)
    return tirx.call_pure_extern(dtype, _OF_BITS[dtype], node.args[0])


def _special(number: Any) -> Any:
    """NaN and infinities of bfloat16, which TVM writes as names that CUDA does not have."""
    if str(number.ty.dtype) != "bfloat16" or math.isfinite(number.value):
        return number
    word = int(np.asarray(number.value, ml_dtypes.bfloat16).view(np.uint16))
    return tirx.call_pure_extern("bfloat16", "__ushort_as_bfloat16", tirx.const(word, "uint16"))


def _is_float(value: Any) -> bool:
    return str(value.ty.dtype).startswith(("float", "bfloat"))


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and value.value == 0


def _with_hidden_zeros(node: Any) -> Any:
    if not _is_float(node) or not (_is_zero(node.a) or _is_zero(node.b)):
        return node
    return type(node)(
        *(opaque_zero(x.value, str(x.ty.dtype)) if _is_zero(x) else x for x in (node.a, node.b))
    )


def _difference(node: Any) -> Any:
    """a - b as a + b * -1, which is no less exact."""
    if not _is_float(node) or _is_zero(node.a) or _is_zero(node.b):
        return node
    return tirx.Add(node.a, tirx.Mul(node.b, tirx.const(-1.0, str(node.b.ty.dtype))))


def _equality(node: Any) -> Any:
    if not _is_float(node.a):
        return node
    return tirx.And(tirx.LE(node.a, node.b), tirx.LE(node.b, node.a))


def _inequality(node: Any) -> Any:
    return _negated(_equality(node)) if _is_float(node.a) else node


def _negated(condition: Any) -> Any:
    return tirx.Select(condition, tirx.const(False, "bool"), tirx.const(True, "bool"))


def _negation(node: Any) -> Any:
    return _negated(node.a) if _compares(node.a) else node


def _both(node: Any) -> Any:
    """Of two comparisons the simplifier would say that they exclude each other."""
    if not (_compares(node.a) and _compares(node.b)):
        return node
    return tirx.Select(node.a, node.b, tirx.const(False, "bool"))


def _either(node: Any) -> Any:
    """Of two comparisons the simplifier would say that one must hold."""
    if not (_compares(node.a) and _compares(node.b)):
        return node
    return tirx.Select(node.a, tirx.const(True, "bool"), node.b)


def _compares(condition: Any) -> bool:
    """Whether floating-point numbers are compared within a condition."""
    found = []

    def visit(node: Any) -> None:
        if _is_float(node.a):
            found.append(node)

    structural_walk(condition, [(kind, visit) for kind in _COMPARISONS])
    return bool(found)


_RULES: list[tuple[Any, Callable[[Any], Any]]] = [
    (tirx.Sub, _difference),
    (tirx.Mul, _with_hidden_zeros),
    (tirx.Div, _with_hidden_zeros),
    (tirx.EQ, _equality),
    (tirx.NE, _inequality),
    (tirx.Not, _negation),
    (tirx.And, _both),
    (tirx.Or, _either),
]
