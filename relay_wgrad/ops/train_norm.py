"""What training normalizations and their gradients share: attributes, checks, algebra.

Statistics are those of a channel in the whole batch (batch normalization), or of a group of
channels in an image (group normalization; of one channel a group, instance normalization).  With n
values that share them, all in float32 (float64 for float64):

    mean = sum(x) / n          rstd = 1 / sqrt(sum((x - mean)^2) / n + epsilon)
    xhat = (x - mean) rstd     z = xhat gamma + beta (+ residual)      y = act(z)

and with g = dy act'(z), sums over all of a channel and means over what shares statistics:

    dbeta = sum(g)   dgamma = sum(g xhat)   dresidual = g
    dx = rstd (gamma g - mean(gamma g) - xhat mean(gamma g xhat))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..attrs import as_int
from ..dtypes import wide_of
from ..ir import op_name
from ..problem import DTYPE_BYTES
from ..relation import Checks, as_size
from ..rules import Size
from .activations import ACTIVATIONS
from .algebra import get_op

R = relax.op
Expr = Any

FORWARD = "relax.nn.batch_norm_train"
BACKWARD = "relax.nn.batch_norm_train_backward"
GROUP_FORWARD = "relax.nn.group_norm_train"
GROUP_BACKWARD = "relax.nn.group_norm_train_backward"
LONGEST_ROW = 2048
"""Channels of a row that has statistics of its own, for which there are kernels in every dtype."""
FORWARDS, BACKWARDS = (FORWARD, GROUP_FORWARD), (BACKWARD, GROUP_BACKWARD)
GRADIENT_OF = dict(zip(FORWARDS, BACKWARDS, strict=True))


# ---- attributes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormAttrs:
    """Of all operators; `momentum` and `unbiased` are about running statistics, of a batch forward.

    groups : of the channels of an image; 0: statistics are those of the batch.
    alpha : the activation's parameter; 0 where it has none.
    """

    axis: int = 1
    epsilon: float = 1e-5
    activation: str = ""
    alpha: float = 0.0
    momentum: float = 0.1
    unbiased: bool = True
    groups: int = 0


_COMMON = ("axis", "epsilon", "activation", "alpha")
KEYS = {
    FORWARD: (*_COMMON, "momentum", "unbiased"),
    BACKWARD: _COMMON,
    GROUP_FORWARD: (*_COMMON, "groups"),
    GROUP_BACKWARD: (*_COMMON, "groups"),
}
"""Operator -> its attributes."""


def short(name: str) -> str:
    """An operator's name in messages."""
    return name.rpartition(".")[2]


def read_attrs(name: str, given: Mapping[str, Any]) -> NormAttrs:
    """An operator's attributes as a caller or TVM has them.

    Raises TypeError or ValueError naming operator, attribute and value.
    """
    op, keys = short(name), KEYS[name]
    missing = [key for key in keys if key not in given]
    unknown = sorted(key for key in given if key not in keys)
    if missing or unknown:
        raise ValueError(f"{op}: attributes missing {missing}, unknown {unknown}")
    made: dict[str, Any] = {"axis": as_int(op, "axis", given["axis"])}
    for key in ("epsilon", "alpha", "momentum"):
        if key in keys:
            made[key] = _as_float(op, key, given[key])
    if not isinstance(given["activation"], str):
        raise TypeError(f"{op}: activation must be a string, got {given['activation']!r}")
    made["activation"] = str(given["activation"])
    if "unbiased" in keys:
        if given["unbiased"] not in (0, 1, True, False):
            raise TypeError(f"{op}: unbiased must be true or false, got {given['unbiased']!r}")
        made["unbiased"] = bool(given["unbiased"])
    if "groups" in keys:
        made["groups"] = as_int(op, "groups", given["groups"])
        if made["groups"] < 1:
            raise ValueError(f"{op}: groups must be at least 1, got {made['groups']}")
    attrs = NormAttrs(**made)
    if attrs.activation not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"{op}: activation must be one of {known}, got {attrs.activation!r}")
    if not attrs.epsilon >= 0 or math.isinf(attrs.epsilon):
        raise ValueError(f"{op}: epsilon must be a number of at least 0, got {attrs.epsilon}")
    _check_alpha(op, attrs)
    if math.isnan(attrs.momentum):
        raise ValueError(f"{op}: momentum must be a number, got {attrs.momentum}")
    return attrs


def _check_alpha(op: str, attrs: NormAttrs) -> None:
    if not ACTIVATIONS[attrs.activation].parameter:
        rule, good = f"alpha must be 0 of {attrs.activation!r}", attrs.alpha == 0
    else:
        # Of a negative one the result would not tell the slope.
        rule, good = "alpha must be a number of at least 0", 0 <= attrs.alpha < math.inf
    if not good:
        raise ValueError(f"{op}: {rule}, got {attrs.alpha}")


def _as_float(op: str, name: str, value: Any) -> float:
    value = getattr(value, "value", value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{op}: {name} must be a number, got {value!r}")
    return float(value)


def call_attrs(call: relax.Call) -> NormAttrs:
    """`read_attrs` of a call, whose attributes may be anything."""
    items = getattr(call.attrs, "items", None)
    return read_attrs(op_name(call), dict(items()) if items is not None else {})


def make_call(name: str, args: Sequence[Expr], attrs: NormAttrs) -> relax.Call:
    """A call of one of the operators."""
    fields = {key: getattr(attrs, key) for key in KEYS[name]}
    return relax.Call(get_op(name), list(args), attrs=tvm.ir.make_node("ir.DictAttrs", **fields))


def is_of_rows(call: relax.Call) -> bool:
    """Whether a call of a group's normalization is of rows: images of one pixel, in one group."""
    attrs, shape = call_attrs(call), _sizes(call.args[0].ty)
    sizes = [n for i, n in enumerate(shape or ()) if i not in (0, attrs.axis)]
    return attrs.groups == 1 and bool(sizes) and all(n == 1 for n in sizes)


# ---- checks --------------------------------------------------------------------------------------


class NormChecks(Checks):
    """What may be wrong with the operands of an operator."""

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
        """The type of x: 2 axes or more, the channels' among them; of groups 3 or more, of which
        the first is the images'."""
        ty, axis, groups = self.tensor(name, arg), self.attrs.axis, self.attrs.groups
        least = 3 if groups else 2
        if 0 <= ty.ndim < least:
            raise self.error(f"{name} must have at least {least} dimensions, got {ty.ndim}: {ty}")
        if groups and axis == 0:
            raise self.error("axis must not be 0, which is the images', got axis=0")
        if axis < 0 or (ty.ndim > 0 and axis >= ty.ndim):
            most = ty.ndim - 1 if ty.ndim > 0 else "its last"
            raise self.error(f"axis must be an axis of {name}, 0 to {most}, got axis={axis}: {ty}")
        for size in _sizes(ty) or ():
            self.positive("a size", size, f"{name} {ty}")
        sizes = _sizes(ty)
        channels = sizes[axis] if sizes is not None else None
        if groups and isinstance(channels, int) and channels % groups:
            raise self.error(
                f"groups must divide {name}'s channels, got groups={groups} and C={channels}"
            )
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
        self._wide(name, arg, x, self.vectors(x), ("C",), "x's channels")

    def statistic(self, name: str, arg: Any, x: relax.TensorType) -> None:
        """One number for all that shares it, in the dtype of the sums."""
        if self.attrs.groups:
            wanted = self.statistics(x)
            self._wide(name, arg, x, wanted, ("N", "groups"), "a value for each image and group")
        else:
            self.vector(name, arg, x)

    def _wide(
        self, name: str, arg: Any, x: relax.TensorType, wanted: relax.TensorType,
        letters: tuple[str, ...], what: str,
    ) -> None:  # fmt: skip
        ty = self.tensor(name, arg)
        if ty.ndim not in (-1, wanted.ndim):
            plural = "s" if wanted.ndim > 1 else ""
            raise self.error(
                f"{name} must have {wanted.ndim} dimension{plural}, got {ty.ndim}: {ty}"
            )
        if None not in (ty.dtype, wanted.dtype) and str(ty.dtype) != str(wanted.dtype):
            raise TypeError(
                f"{self.op}: {name} must be {wanted.dtype} beside x of {x.dtype}, got {ty.dtype}"
            )
        sizes, shape = _sizes(ty), _sizes(wanted)
        if sizes is not None and shape is not None:
            for letter, got, want in zip(letters, sizes, shape, strict=True):
                self.same(f"{name} must have {what}", name, got, f"x's {letter}", want)

    def vectors(self, x: relax.TensorType) -> relax.TensorType:
        """The type of one number for each channel of x."""
        return self._of_sums(x, lambda shape: [shape[self.attrs.axis]], 1)

    def statistics(self, x: relax.TensorType) -> relax.TensorType:
        """The type of one number for all that shares it."""
        if not self.attrs.groups:
            return self.vectors(x)
        return self._of_sums(x, lambda shape: [shape[0], self.attrs.groups], 2)

    def _of_sums(
        self, x: relax.TensorType, sizes: Callable[[list[Size]], list[Any]], rank: int
    ) -> relax.TensorType:
        shape = _sizes(x)
        wide = wide_of(str(x.dtype)) if x.dtype is not None else None
        if shape is None:
            return relax.TensorType(None, wide, x.vdevice, ndim=rank)
        return relax.TensorType(sizes(shape), wide, x.vdevice)

    def count(self, x: relax.TensorType) -> int | None:
        """How many values a channel has, if that is known."""
        shape = _sizes(x)
        rest = [n for i, n in enumerate(shape or ()) if i != self.attrs.axis]
        known = shape is not None and all(isinstance(n, int) for n in rest)
        return math.prod(rest) if known else None


def _sizes(ty: relax.TensorType) -> list[Size] | None:
    shape = ty.shape
    return [as_size(v) for v in shape.values] if isinstance(shape, relax.ShapeExpr) else None


# ---- what operators are told about their arguments ----------------------------------------------

SCALE_AND_SHIFT = (
    ("gamma", "Tensor", "The scale of each channel."),
    ("beta", "Tensor", "The shift of each channel."),
)
GIVEN = (("x", "Tensor", "What is normalized."), *SCALE_AND_SHIFT)


def given_backward(whose: str) -> tuple[tuple[str, str, str], ...]:
    """A gradient's; `whose` are the statistics."""
    return (
        ("dy", "Tensor", "The gradient of y."),
        ("x", "Tensor", "What was normalized."),
        *SCALE_AND_SHIFT,
        ("mean", "Tensor", f"The mean of {whose}."),
        ("rstd", "Tensor", f"1 / sqrt(variance + epsilon) of {whose}."),
        ("y", "Tensor", "The forward result, where there were a residual and an activation."),
    )


# ---- algebra -------------------------------------------------------------------------------------


def dtype_of(x: Expr) -> str:
    return str(x.ty.dtype)


class Terms:
    """Expressions that the operators and their gradients are made of, each bound once.

    All of them are in the dtype of the sums.  Where groups have several channels, tensors have an
    axis of groups and one of a group's channels in place of the channels'; `whole` joins them.
    """

    def __init__(self, bb: Any, x: Expr, attrs: NormAttrs) -> None:
        self.bb, self.attrs = bb, attrs
        self.given = dtype_of(x)
        self.dtype = wide_of(self.given)
        op = "group_norm_train" if attrs.groups else "batch_norm_train"
        if not isinstance(x.ty.shape, relax.ShapeExpr):
            raise ValueError(f"{op}: nothing computes it for a shape unknown: {x.ty}")
        self.outer = list(x.ty.shape.values)
        axis, groups = attrs.axis, attrs.groups
        channels = as_size(self.outer[axis])
        if groups and not isinstance(channels, int):
            raise ValueError(f"{op}: nothing computes it for channels unknown: {x.ty}")
        self.split = groups > 0 and groups != channels
        self.channel_axes = [axis, axis + 1] if self.split else [axis]
        self.shape = list(self.outer)
        if self.split:
            self.shape[axis : axis + 1] = [groups, int(channels) // groups]
        self.rank = len(self.shape)
        self.images = [0] if groups else []
        self.axes = [a for a in range(self.rank) if a not in (*self.images, axis)]
        self.act = ACTIVATIONS[attrs.activation]
        self.x = self.wide(x)

    def emit(self, value: Expr) -> Expr:
        return value if isinstance(value, relax.Var) else self.bb.emit(value)

    def wide(self, x: Expr) -> Expr:
        """A tensor of x's shape in the dtype of the sums."""
        x = self.emit(R.reshape(x, self.shape)) if self.split else x
        return x if dtype_of(x) == self.dtype else self.emit(R.astype(x, self.dtype))

    def whole(self, value: Expr) -> Expr:
        """A tensor in x's shape."""
        return self.emit(R.reshape(value, self.outer)) if self.split else value

    def like_x(self, value: Expr) -> Expr:
        """A tensor in x's shape and dtype; itself where it is: a cast to its own dtype would be a
        copy, where nothing else is computed with it."""
        value = self.whole(value)
        return value if dtype_of(value) == self.given else self.emit(R.astype(value, self.given))

    def number(self, value: float) -> Expr:
        return relax.const(value, self.dtype)

    def lift(self, statistic: Expr) -> Expr:
        """One number for all that shares it, beside x."""
        return self._beside(statistic, [*self.images, self.attrs.axis])

    def column(self, vector: Expr) -> Expr:
        """One number for each channel, beside x."""
        return self._beside(vector, self.channel_axes)

    def _beside(self, value: Expr, axes: list[int]) -> Expr:
        if axes == [self.rank - 1]:
            return value
        shape = [n if axis in axes else 1 for axis, n in enumerate(self.shape)]
        return self.emit(R.reshape(value, shape))

    def shared(self, value: Expr) -> Expr:
        """The sum over all that shares statistics."""
        return self.emit(R.sum(value, self.axes))

    def mean(self, value: Expr) -> Expr:
        """The mean over all that shares statistics."""
        return self.over(self.shared(value), self.count())

    def sum(self, value: Expr) -> Expr:
        """Over the pixels: for each channel, of groups for each channel of an image."""
        kept = (*self.images, *self.channel_axes)
        return self.emit(R.sum(value, [a for a in range(self.rank) if a not in kept]))

    def parameter(self, sums: Expr) -> Expr:
        """Of such sums what each channel has, (C,)."""
        if not self.images:
            return sums
        total = self.emit(R.sum(sums, [0]))
        return self.emit(R.reshape(total, [self.outer[self.attrs.axis]])) if self.split else total

    def in_groups(self, sums: Expr, gamma: Expr) -> Expr:
        """Of such sums those of values times gamma over all that shares statistics; where that is
        one channel, of which gamma is a factor, without it."""
        if not self.split:
            return sums
        gamma = self.emit(R.reshape(gamma, [self.shape[a] for a in self.channel_axes]))
        return self.emit(R.sum(self.times(sums, gamma), [2]))

    def weighed(self, g: Expr, gamma: Expr) -> Expr:
        """g times gamma, or g, as `in_groups`."""
        return self.times(g, self.column(gamma)) if self.split else g

    def scale(self, gamma: Expr, rstd: Expr) -> Expr:
        """The factor of what is weighed: rstd, and gamma where that is in no weight."""
        return rstd if self.split else self.times(gamma, rstd)

    def values(self) -> int | None:
        """How many values share statistics, where that is known."""
        sizes = [as_size(self.shape[axis]) for axis in self.axes]
        known = [n for n in sizes if isinstance(n, int)]
        return math.prod(known) if len(known) == len(sizes) else None

    def count(self) -> Expr:
        """How many values share statistics."""
        values = self.values()
        if values is not None:
            return self.number(values)
        sizes = [self.shape[axis] for axis in self.axes]
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
        return self.plus(self.times(xhat, self.column(gamma)), self.column(beta))

    def activated(self, z: Expr) -> Expr:
        return self.emit(self.act.value(z, self.attrs.alpha))

    def passed(self, g: Expr, z: Expr) -> Expr:
        """g times the activation's slope at z."""
        return self.emit(self.act.slope(g, z, self.attrs.alpha))
