"""One record for each operator of one element at a time: what it is called, and what it is.

Every table of such operators is a view of these records: the importers of PyTorch, ONNX and
StableHLO, ONNX's writer, Relay's operators, the layout rules of Relax and of Relay, and the cases
of the tests.  An operator that has a record with its names is imported, printed, followed by
layouts and tested; whether it has a gradient is asked of TVM's registry, where `ops/derivatives.py`
and `ops/ties.py` put what upstream lacks.

Where an operator means more than its elements (a sum of any number of tensors, a rounding mode),
the table that knows it has a row of its own in the record's place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..ir import compared, const_like

op = relax.op
Emit = Callable[[Any], Any]
NumPy = Callable[..., Any]

ALL = (-30.0, 30.0)
POSITIVE = (1e-30, 1e30)


@dataclass(frozen=True)
class Elementwise:
    """An operator whose result at a place depends on its operands there alone.

    name : Relax's, without `relax.`; where Relax has none, a name for what `built` composes.
    numpy : its values, of arrays, or None where NumPy has no such function.
    operands : how many; they broadcast.
    takes : of which kinds they may be: "f" floating point, "i" integers, "b" truth values.
    gives : "bool", or "" for the operands' type.
    slope : "smooth" (also with a kink), "step" for zero where there is one, "" for truth values.
    torch : ATen's overloads, with spaces between them; onnx, stablehlo, relay : the others' names;
        "" where there is no such operator.
    domain : between which numbers a function is asked, at most.
    neutral : the second operand that changes nothing, if it is one number; where the operator
        `commutes`, the first one too.
    built : composes it of Relax's operators, of (emit, operands…); None: it is Relax's `name`.
    """

    name: str
    numpy: NumPy | None = None
    operands: int = 1
    takes: str = "f"
    gives: str = ""
    slope: str = "smooth"
    torch: str = ""
    onnx: str = ""
    stablehlo: str = ""
    relay: str = ""
    domain: tuple[float, float] = ALL
    neutral: int | None = None
    commutes: bool = False
    built: Callable[..., Any] | None = None

    def apply(self, emit: Emit, *operands: Any) -> Any:
        """Its result as a Relax expression, not yet bound; intermediates are."""
        if self.built is not None:
            return self.built(emit, *operands)
        return _relax(self.name)(*operands)


def _relax(name: str) -> Callable[..., Any]:
    module, _, last = name.rpartition(".")
    return getattr(getattr(op, module) if module else op, last)


# ---- what Relax composes -------------------------------------------------------------------------


def _scaled_log(base: float) -> Callable[..., Any]:
    return lambda emit, x: op.multiply(emit(op.log(x)), const_like(1 / math.log(base), x))


def _near_zero(emit: Emit, x: Any, limit: float, near: Emit, plain: Emit) -> Any:
    """A function by `near` where |x| is below the limit, else by `plain`: no digits are lost."""
    small = emit(op.less(op.abs(x), const_like(limit, x)))
    inside = emit(op.where(small, x, const_like(0, x)))
    return op.where(small, near(inside), plain(x))


def _expm1(emit: Emit, x: Any) -> Any:
    """exp(x) - 1, near 0 its series: x (1 + x / 2 (1 + x / 3 (1 + …)))."""

    def near(y: Any) -> Any:
        one, total = const_like(1, y), const_like(1, y)
        for n in range(13, 1, -1):
            step = op.multiply(total, op.multiply(y, const_like(1 / n, y)))
            total = emit(op.add(one, emit(step)))
        return op.multiply(y, total)

    return _near_zero(emit, x, 1 / 4, near, lambda y: op.subtract(op.exp(y), const_like(1, y)))


def _log1p(emit: Emit, x: Any) -> Any:
    """log(1 + x), near 0 twice the area tangent of z = y / (2 + y): z + z^3 / 3 + z^5 / 5 + …"""

    def near(y: Any) -> Any:
        z = emit(op.divide(y, op.add(y, const_like(2, y))))
        square, total = emit(op.multiply(z, z)), const_like(1 / 15, y)
        for odd in range(13, 0, -2):
            total = emit(op.add(op.multiply(total, square), const_like(1 / odd, y)))
        return op.multiply(op.multiply(z, total), const_like(2, y))

    return _near_zero(emit, x, 1 / 8, near, lambda y: op.log(op.add(y, const_like(1, y))))


def _cbrt(emit: Emit, x: Any) -> Any:
    return op.multiply(op.sign(x), op.power(op.abs(x), const_like(1 / 3, x)))


def _exp2(emit: Emit, x: Any) -> Any:
    return op.power(const_like(2, x), x)


def _erfc(emit: Emit, x: Any) -> Any:
    return op.subtract(const_like(1, x), op.erf(x))


def _reciprocal(emit: Emit, x: Any) -> Any:
    return op.divide(const_like(1, x), x)


def _comparison(name: str) -> Callable[..., Any]:
    return lambda emit, a, b: compared(_relax(name), a, b)


def _bitwise(name: str) -> Callable[..., Any]:
    """Of truth values the logical operator, of integers the one of their bits."""

    def built(emit: Emit, *xs: Any) -> Any:
        kind = "logical" if str(xs[0].ty.dtype) == "bool" else "bitwise"
        return _relax(f"{kind}_{name}")(*xs)

    return built


# ---- the records ---------------------------------------------------------------------------------

_R = Elementwise
_UNARY = (
    _R("abs", np.abs, takes="fi", torch="abs.default", onnx="Abs", stablehlo="abs", relay="abs"),
    _R("acos", np.arccos, torch="acos.default", onnx="Acos", stablehlo="acos", relay="acos",
       domain=(-1, 1)),
    _R("acosh", np.arccosh, torch="acosh.default", onnx="Acosh", stablehlo="acosh", relay="acosh",
       domain=(1, 1e4)),
    _R("asin", np.arcsin, torch="asin.default", onnx="Asin", stablehlo="asin", relay="asin",
       domain=(-1, 1)),
    _R("asinh", np.arcsinh, torch="asinh.default", onnx="Asinh", stablehlo="asinh", relay="asinh"),
    _R("atan", np.arctan, torch="atan.default", onnx="Atan", stablehlo="atan", relay="atan"),
    _R("atanh", np.arctanh, torch="atanh.default", onnx="Atanh", stablehlo="atanh", relay="atanh",
       domain=(-0.99, 0.99)),
    _R("cbrt", np.cbrt, stablehlo="cbrt", built=_cbrt),
    _R("ceil", np.ceil, slope="step", torch="ceil.default", onnx="Ceil", stablehlo="ceil",
       relay="ceil"),
    _R("cos", np.cos, torch="cos.default", onnx="Cos", stablehlo="cosine", relay="cos"),
    _R("cosh", np.cosh, torch="cosh.default", onnx="Cosh", stablehlo="cosh", relay="cosh",
       domain=(-9, 9)),
    _R("erf", torch="erf.default", onnx="Erf", stablehlo="erf", relay="erf", domain=(-4, 4)),
    _R("erfc", torch="erfc.default", stablehlo="erfc", domain=(-4, 4), built=_erfc),
    _R("exp", np.exp, torch="exp.default", onnx="Exp", stablehlo="exponential", relay="exp",
       domain=(-80, 80)),
    _R("exp2", np.exp2, torch="exp2.default", domain=(-80, 80), built=_exp2),
    _R("expm1", np.expm1, torch="expm1.default", stablehlo="exponential_minus_one",
       domain=(-80, 80), built=_expm1),
    _R("floor", np.floor, slope="step", torch="floor.default", onnx="Floor", stablehlo="floor",
       relay="floor"),
    _R("log", np.log, torch="log.default", onnx="Log", stablehlo="log", relay="log",
       domain=POSITIVE),
    _R("log10", np.log10, torch="log10.default", relay="log10", domain=POSITIVE,
       built=_scaled_log(10)),
    _R("log1p", np.log1p, torch="log1p.default", stablehlo="log_plus_one", domain=(-0.99, 1e30),
       built=_log1p),
    _R("log2", np.log2, torch="log2.default", relay="log2", domain=POSITIVE, built=_scaled_log(2)),
    _R("negative", np.negative, takes="fi", torch="neg.default", onnx="Neg", stablehlo="negate",
       relay="negative"),
    _R("nn.relu", torch="relu.default", takes="fi", onnx="Relu", relay="nn.relu"),
    _R("nn.silu", torch="silu.default"),
    _R("reciprocal", np.reciprocal, torch="reciprocal.default", onnx="Reciprocal",
       domain=(0.1, 1e30), built=_reciprocal),
    _R("round", np.round, slope="step", torch="round.default", onnx="Round",
       stablehlo="round_nearest_even", relay="round"),
    _R("rsqrt", lambda x: 1 / np.sqrt(x), torch="rsqrt.default", stablehlo="rsqrt", relay="rsqrt",
       domain=POSITIVE),
    _R("sigmoid", lambda x: 1 / (1 + np.exp(-x)), torch="sigmoid.default", onnx="Sigmoid",
       stablehlo="logistic", relay="sigmoid"),
    _R("sign", np.sign, slope="step", torch="sign.default", onnx="Sign", stablehlo="sign",
       relay="sign"),
    _R("sin", np.sin, torch="sin.default", onnx="Sin", stablehlo="sine", relay="sin"),
    _R("sinh", np.sinh, torch="sinh.default", onnx="Sinh", stablehlo="sinh", relay="sinh",
       domain=(-9, 9)),
    _R("sqrt", np.sqrt, torch="sqrt.default", onnx="Sqrt", stablehlo="sqrt", relay="sqrt",
       domain=POSITIVE),
    _R("square", np.square, takes="fi", torch="square.default", stablehlo="square"),
    _R("tan", np.tan, torch="tan.default", onnx="Tan", stablehlo="tan", relay="tan"),
    _R("tanh", np.tanh, torch="tanh.default", onnx="Tanh", stablehlo="tanh", relay="tanh",
       domain=(-9, 9)),
    _R("trunc", np.trunc, slope="step", torch="trunc.default", relay="trunc"),
)  # fmt: skip
_TESTS = tuple(
    _R(name, function, gives="bool", slope="", torch=f"{name}.default", onnx=onnx,
       stablehlo=stablehlo, relay=name)
    for name, function, onnx, stablehlo in (
        ("isfinite", np.isfinite, "", "is_finite"), ("isinf", np.isinf, "IsInf", ""),
        ("isnan", np.isnan, "IsNaN", ""),
    )
)  # fmt: skip
_ARITHMETIC = (
    _R("add", np.add, 2, "fi", torch="add.Scalar add.Tensor", onnx="Add", stablehlo="add",
       relay="add", neutral=0, commutes=True),
    _R("subtract", np.subtract, 2, "fi", torch="sub.Scalar sub.Tensor", onnx="Sub",
       stablehlo="subtract", relay="subtract", neutral=0),
    _R("multiply", np.multiply, 2, "fi", torch="mul.Scalar mul.Tensor", onnx="Mul",
       stablehlo="multiply", relay="multiply", neutral=1, commutes=True),
    _R("divide", np.divide, 2, torch="div.Scalar div.Tensor", onnx="Div", stablehlo="divide",
       relay="divide", neutral=1),
    _R("maximum", np.maximum, 2, "fi", torch="maximum.default max.other", onnx="Max",
       stablehlo="maximum", relay="maximum", commutes=True),
    _R("minimum", np.minimum, 2, "fi", torch="minimum.default min.other", onnx="Min",
       stablehlo="minimum", relay="minimum", commutes=True),
    _R("power", np.power, 2, torch="pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor", onnx="Pow",
       stablehlo="power", relay="power"),
    _R("atan2", np.arctan2, 2, torch="atan2.default", stablehlo="atan2"),
    _R("floor_divide", np.floor_divide, 2, "fi", slope="step", relay="floor_divide"),
    _R("floor_mod", np.mod, 2, "fi", relay="floor_mod"),
    _R("mod", np.fmod, 2, "fi", relay="mod"),
    _R("left_shift", np.left_shift, 2, "i", slope="", relay="left_shift"),
    _R("right_shift", np.right_shift, 2, "i", slope="", relay="right_shift"),
)  # fmt: skip
_COMPARISONS = tuple(
    _R(name, getattr(np, name), 2, "fib", "bool", "", f"{torch}.Scalar {torch}.Tensor", onnx,
       torch.upper(), name, built=_comparison(name))
    for name, torch, onnx in (
        ("equal", "eq", "Equal"), ("not_equal", "ne", ""), ("greater", "gt", "Greater"),
        ("greater_equal", "ge", "GreaterOrEqual"), ("less", "lt", "Less"),
        ("less_equal", "le", "LessOrEqual"),
    )
)  # fmt: skip
_LOGIC = (
    _R("logical_not", np.logical_not, takes="b", slope="", torch="logical_not.default", onnx="Not",
       relay="logical_not"),
    _R("bitwise_not", np.invert, takes="bi", slope="", torch="bitwise_not.default",
       onnx="BitwiseNot", stablehlo="not", relay="bitwise_not", built=_bitwise("not")),
    *(_R(f"logical_{name}", getattr(np, f"logical_{name}"), 2, "b", slope="",
         torch=f"logical_{name}.default", onnx=name.capitalize(), relay=f"logical_{name}")
      for name in ("and", "or", "xor")),
    *(_R(f"bitwise_{name}", getattr(np, f"bitwise_{name}"), 2, "bi", slope="",
         torch=f"bitwise_{name}.Tensor __{name}__.Tensor",
         onnx=f"Bitwise{name.capitalize()}", stablehlo=name, relay=f"bitwise_{name}",
         built=_bitwise(name))
      for name in ("and", "or", "xor")),
)  # fmt: skip

UNARY, BINARY = (_UNARY + _TESTS + _LOGIC[:2]), (_ARITHMETIC + _COMPARISONS + _LOGIC[2:])
RECORDS: dict[str, Elementwise] = {record.name: record for record in UNARY + BINARY}
"""By their own names."""


def by(front_end: str, records: Iterable[Elementwise] = RECORDS.values()) -> dict[str, Elementwise]:
    """Records by the names that a front end has for them: `by("onnx")["Neg"]`."""
    return {name: record for record in records for name in getattr(record, front_end).split()}


RELAX = tuple(name for name in RECORDS if name.startswith("nn.") or hasattr(op, name))
"""Those that are operators of Relax."""

_BESIDE = "astype broadcast_to clip expand_dims nn.gelu nn.leakyrelu reshape squeeze where"
PER_ELEMENT = frozenset(f"relax.{name}" for name in (*RELAX, *_BESIDE.split()))
"""Relax operators that TVM fuses with what makes their operands and with what reads them."""
