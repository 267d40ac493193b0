"""What training batch normalization and its gradient share: attributes, checks, algebra.

With n pixels (all axes but the channels'), all in float32 (float64 for float64):

    mean = sum(x) / n          rstd = 1 / sqrt(sum((x - mean)^2) / n + epsilon)
    xhat = (x - mean) rstd     z = xhat gamma + beta (+ residual)      y = act(z)

and with g = dy act'(z), means over the pixels:

    dbeta = sum(g)   dgamma = sum(g xhat)   dresidual = g
    dx = gamma rstd (g - mean(g) - xhat mean(g xhat))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..attrs import as_int
from ..dtypes import HALVES
from ..ir import const_like
from ..problem import DTYPE_BYTES
from ..relation import Checks, as_size
from ..rules import Size
from .algebra import get_op
from .ties import relu_slope

R = relax.op
Expr = Any

FORWARD = "relax.nn.batch_norm_train"
BACKWARD = "relax.nn.batch_norm_train_backward"


# ---- activations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activation:
    """What may follow the normalization, of z: its value, its slope times g, its second derivative.

    `by_result`: whether the slope can be told by the result.  `curved`: the second derivative,
    None where it is 0 almost everywhere.
    """

    value: Callable[[Expr], Expr]
    slope: Callable[[Expr, Expr], Expr]
    by_result: bool = True
    curved: Callable[[Expr], Expr] | None = None


def _relu6(z: Expr) -> Expr:
    low = R.where(R.less_equal(z, const_like(0, z)), const_like(0, z), z)
    return R.where(R.greater_equal(z, const_like(6, z)), const_like(6, z), low)


def _relu6_slope(g: Expr, z: Expr) -> Expr:
    return R.where(R.greater_equal(z, const_like(6, z)), const_like(0, g), relu_slope(g, z))


def _silu_slope(g: Expr, z: Expr) -> Expr:
    s = R.sigmoid(z)
    one = const_like(1, z)
    return R.multiply(g, R.multiply(s, R.add(one, R.multiply(z, R.subtract(one, s)))))


def _silu_curve(z: Expr) -> Expr:
    s = R.sigmoid(z)
    one, two = const_like(1, z), const_like(2, z)
    inner = R.add(two, R.multiply(z, R.subtract(one, R.multiply(two, s))))
    return R.multiply(R.multiply(s, R.subtract(one, s)), inner)


ACTIVATIONS: dict[str, Activation] = {
    "": Activation(lambda z: z, lambda g, z: g),
    "relu": Activation(R.nn.relu, relu_slope),
    "relu6": Activation(_relu6, _relu6_slope),
    "silu": Activation(R.nn.silu, _silu_slope, by_result=False, curved=_silu_curve),
}


# ---- attributes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormAttrs:
    """Of both operators; `momentum` and `unbiased` are about running statistics, forward only."""

    axis: int = 1
    epsilon: float = 1e-5
    activation: str = ""
    momentum: float = 0.1
    unbiased: bool = True


BACKWARD_KEYS = ("axis", "epsilon", "activation")
FORWARD_KEYS = (*BACKWARD_KEYS, "momentum", "unbiased")


def read_attrs(op: str, given: Mapping[str, Any], keys: Sequence[str]) -> NormAttrs:
    """Attributes as a caller or TVM has them.

    Raises TypeError or ValueError naming operator, attribute and value.
    """
    missing = [key for key in keys if key not in given]
    unknown = sorted(key for key in given if key not in keys)
    if missing or unknown:
        raise ValueError(f"{op}: attributes missing {missing}, unknown {unknown}")
    made: dict[str, Any] = {"axis": as_int(op, "axis", given["axis"])}
    for key in ("epsilon", "momentum"):
        if key in keys:
            made[key] = _as_float(op, key, given[key])
    if not isinstance(given["activation"], str):
        raise TypeError(f"{op}: activation must be a string, got {given['activation']!r}")
    made["activation"] = str(given["activation"])
    if "unbiased" in keys:
        if given["unbiased"] not in (0, 1, True, False):
            raise TypeError(f"{op}: unbiased must be true or false, got {given['unbiased']!r}")
        made["unbiased"] = bool(given["unbiased"])
    attrs = NormAttrs(**made)
    if attrs.activation not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"{op}: activation must be one of {known}, got {attrs.activation!r}")
    if not attrs.epsilon >= 0 or math.isinf(attrs.epsilon):
        raise ValueError(f"{op}: epsilon must be a number of at least 0, got {attrs.epsilon}")
    if math.isnan(attrs.momentum):
        raise ValueError(f"{op}: momentum must be a number, got {attrs.momentum}")
    return attrs


def _as_float(op: str, name: str, value: Any) -> float:
    value = getattr(value, "value", value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{op}: {name} must be a number, got {value!r}")
    return float(value)


def call_attrs(call: relax.Call, op: str, keys: Sequence[str]) -> NormAttrs:
    """`read_attrs` of a call, whose attributes may be anything."""
    items = getattr(call.attrs, "items", None)
    return read_attrs(op, dict(items()) if items is not None else {}, keys)


def make_call(name: str, args: Sequence[Expr], attrs: NormAttrs, keys: Sequence[str]) -> relax.Call:
    """A call of one of the two operators."""
    fields = {key: getattr(attrs, key) for key in keys}
    return relax.Call(get_op(name), list(args), attrs=tvm.ir.make_node("ir.DictAttrs", **fields))


# ---- checks --------------------------------------------------------------------------------------


class NormChecks(Checks):
    """What may be wrong with the operands of either operator."""

    def __init__(self, op: str, attrs: NormAttrs) -> None:
        super().__init__(op)
        self.attrs = attrs

    def tensor(self, name: str, arg: Any) -> relax.TensorType:
        """An operand's type, which must be a tensor's of floats."""
        ty = arg.ty
        if not isinstance(ty, relax.TensorType):
            raise TypeError(f"{self.op}: {name} must be a tensor, got {ty}")
        if ty.dtype is not None and str(ty.dtype) not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise TypeError(f"{self.op}: {name} must be one of {known}, got {ty.dtype}")
        return ty

    def data(self, name: str, arg: Any) -> relax.TensorType:
        """The type of x: at least 2 axes, the channels' among them."""
        ty, axis = self.tensor(name, arg), self.attrs.axis
        if ty.ndim in (0, 1):
            raise self.error(f"{name} must have at least 2 dimensions, got {ty.ndim}: {ty}")
        if axis < 0 or (ty.ndim > 0 and axis >= ty.ndim):
            most = ty.ndim - 1 if ty.ndim > 0 else "its last"
            raise self.error(f"axis must be an axis of {name}, 0 to {most}, got axis={axis}: {ty}")
        for size in _sizes(ty) or ():
            self.positive("a size", size, f"{name} {ty}")
        return ty

    def like(self, name: str, arg: Any, other_name: str, other: relax.TensorType) -> None:
        """A tensor of another's shape and dtype."""
        ty = self.tensor(name, arg)
        rule = f"{name} must be of {other_name}'s"
        if None not in (ty.dtype, other.dtype) and str(ty.dtype) != str(other.dtype):
            raise TypeError(f"{self.op}: {rule} dtype, got {ty.dtype} and {other.dtype}")
        a, b = _sizes(ty), _sizes(other)
        different = -1 not in (ty.ndim, other.ndim) and ty.ndim != other.ndim
        if a is not None and b is not None:
            pairs = zip(a, b, strict=False)
            different = different or any(self.equal(m, n) is False for m, n in pairs)
        if different:
            raise self.error(f"{rule} shape, got {name} {ty} and {other_name} {other}")

    def vector(self, name: str, arg: Any, x: relax.TensorType) -> None:
        """One number for each channel, in the dtype of the sums."""
        ty = self.tensor(name, arg)
        if ty.ndim not in (-1, 1):
            raise self.error(f"{name} must have 1 dimension, got {ty.ndim}: {ty}")
        wide = wide_of(str(x.dtype)) if x.dtype is not None else None
        if ty.dtype is not None and wide is not None and str(ty.dtype) != wide:
            raise TypeError(
                f"{self.op}: {name} must be {wide} beside x of {x.dtype}, got {ty.dtype}"
            )
        sizes, shape = _sizes(ty), _sizes(x)
        if sizes is not None and shape is not None:
            channels = shape[self.attrs.axis]
            self.same(f"{name} must have x's channels", name, sizes[0], "x's C", channels)

    def vectors(self, x: relax.TensorType) -> relax.TensorType:
        """The type of one number for each channel of x."""
        shape = _sizes(x)
        wide = wide_of(str(x.dtype)) if x.dtype is not None else None
        if shape is None:
            return relax.TensorType(None, wide, x.vdevice, ndim=1)
        return relax.TensorType([shape[self.attrs.axis]], wide, x.vdevice)

    def count(self, x: relax.TensorType) -> int | None:
        """How many values a channel has, if that is known."""
        shape = _sizes(x)
        rest = [n for i, n in enumerate(shape or ()) if i != self.attrs.axis]
        known = shape is not None and all(isinstance(n, int) for n in rest)
        return math.prod(rest) if known else None


def _sizes(ty: relax.TensorType) -> list[Size] | None:
    shape = ty.shape
    return [as_size(v) for v in shape.values] if isinstance(shape, relax.ShapeExpr) else None


# ---- algebra -------------------------------------------------------------------------------------


def dtype_of(x: Expr) -> str:
    return str(x.ty.dtype)


def wide_of(dtype: str) -> str:
    """The dtype of sums, parameters and statistics beside tensors of `dtype`."""
    return "float32" if dtype in HALVES else dtype


class Terms:
    """Expressions that both operators and their gradients are made of, each bound once.

    All of them are in the dtype of the sums.
    """

    def __init__(self, bb: Any, x: Expr, attrs: NormAttrs) -> None:
        self.bb, self.attrs = bb, attrs
        self.dtype = wide_of(dtype_of(x))
        if not isinstance(x.ty.shape, relax.ShapeExpr):
            raise ValueError(f"batch_norm_train: nothing computes it for a shape unknown: {x.ty}")
        self.shape = list(x.ty.shape.values)
        self.rank = len(self.shape)
        self.axes = [axis for axis in range(self.rank) if axis != attrs.axis]
        self.act = ACTIVATIONS[attrs.activation]
        self.x = self.wide(x)

    def emit(self, value: Expr) -> Expr:
        return value if isinstance(value, relax.Var) else self.bb.emit(value)

    def wide(self, x: Expr) -> Expr:
        """A tensor in the dtype of the sums."""
        return x if dtype_of(x) == self.dtype else self.emit(R.astype(x, self.dtype))

    def number(self, value: float) -> Expr:
        return relax.const(value, self.dtype)

    def lift(self, vector: Expr) -> Expr:
        """One number for each channel, beside x."""
        if self.attrs.axis == self.rank - 1:
            return vector
        column: list[Any] = [1] * self.rank
        column[self.attrs.axis] = self.shape[self.attrs.axis]
        return self.emit(R.reshape(vector, column))

    def sum(self, value: Expr) -> Expr:
        """Over the pixels, for each channel."""
        return self.emit(R.sum(value, self.axes))

    def count(self) -> Expr:
        """The number of pixels."""
        sizes = [self.shape[axis] for axis in self.axes]
        if all(isinstance(as_size(n), int) for n in sizes):
            return self.number(math.prod(int(n) for n in sizes))
        ones = self.emit(R.ones(relax.ShapeExpr(sizes), "float64"))
        return self.emit(R.astype(self.emit(R.sum(ones)), self.dtype))

    def times(self, *factors: Expr) -> Expr:
        product = factors[0]
        for factor in factors[1:]:
            product = self.emit(R.multiply(product, factor))
        return product

    def plus(self, *terms: Expr) -> Expr:
        total = terms[0]
        for term in terms[1:]:
            total = self.emit(R.add(total, term))
        return total

    def minus(self, a: Expr, b: Expr) -> Expr:
        return self.emit(R.subtract(a, b))

    def over(self, a: Expr, b: Expr) -> Expr:
        return self.emit(R.divide(a, b))

    def xhat(self, mean: Expr, rstd: Expr) -> tuple[Expr, Expr]:
        """(x - mean, that times rstd)."""
        centred = self.minus(self.x, self.lift(mean))
        return centred, self.times(centred, self.lift(rstd))

    def affine(self, xhat: Expr, gamma: Expr, beta: Expr) -> Expr:
        return self.plus(self.times(xhat, self.lift(gamma)), self.lift(beta))

    def passed(self, g: Expr, z: Expr) -> Expr:
        """g times the activation's slope at z."""
        return self.emit(self.act.slope(g, z))
