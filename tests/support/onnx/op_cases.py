"""Every elementwise op of `from_onnx`'s list, and PyTorch's for it.

A row writes the op at random: attributes, forms of its opset, operands left out.  Reductions and
what moves elements are in `shape_cases`, layers in `layer_cases`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import torch
import torch.nn.functional as fn

from relay_wgrad.ops.elementwise import ALL, Elementwise, by
from tests.support.onnx.writer import ELEM, Leaves, Step, Writer
from tests.support.records import EXACT, by_pytorch, within

T = torch.Tensor


@dataclass(frozen=True)
class Row:
    """`write` emits nodes and gives PyTorch's step; `since`: the opset that has the op."""

    write: Callable[[Writer], Step]
    since: int = 9
    exact: bool = False
    """Whether halves stay exact numbers, so that ties after it are ties for both."""


def unary(op: str, step: Callable[[T], T], since: int = 9, exact: bool = False) -> Row:
    def write(w: Writer) -> Step:
        w.emit(op, w.value)
        return lambda x, p: step(x)

    return Row(write, since, exact)


def f32(value: float) -> float:
    """As an attribute holds it."""
    return float(np.float32(value))


def numbered(
    op: str, step: Callable[..., T], since: int = 9, exact: bool = False,
    **defaults: float,
) -> Row:  # fmt: skip
    """An op of numbers, each given or left out."""

    def write(w: Writer) -> Step:
        choices = {k: w.rng.choice((None, 0.25, 0.5, 0.7)) for k in defaults}
        if w.ties:
            choices = {k: w.rng.choice((0.25, 0.5)) for k in defaults}
        w.emit(op, w.value, **choices)
        values = [defaults[k] if choices[k] is None else f32(choices[k] or 0) for k in defaults]
        return lambda x, p: step(x, *values)

    return Row(write, since, exact)


def last_axes(w: Writer) -> tuple[int, list[int], str]:
    """(an axis, the sizes from it on, a scale of those)."""
    rank = len(w.shape)
    axis = w.rng.randrange(-rank, rank)
    shape = list(w.shape[axis % rank :])
    return axis, shape, w.weight(*shape)


def gelu(w: Writer) -> Step:
    kind = w.rng.choice(("none", "tanh"))
    w.emit("Gelu", w.value, approximate=w.rng.choice((None, kind)) if kind == "none" else kind)
    return lambda x, p: fn.gelu(x, approximate=kind)


def broadcastable(w: Writer) -> tuple[int, ...]:
    """A shape that is broadcast to the value's."""
    shape = [s if w.rng.random() < 0.6 else 1 for s in w.shape]
    return tuple(shape[w.rng.randrange(len(shape)) :] if shape else (1,))


def binary(
    op: str, step: Callable[[T, T], T], *, safe: bool = False, since: int = 9, exact: bool = False
) -> Row:
    """With itself, a parameter on either side, or a constant; `safe`: away from 0."""

    def write(w: Writer) -> Step:
        how = w.rng.choice(("self", "right", "left", "constant"))
        if how == "self" and safe:
            how = "right"
        if how == "self":
            w.emit(op, w.value, w.value)
            return lambda x, p: step(x, x)
        if how == "constant":
            value = float(w.draw(1, positive=safe)[0])
            w.emit(op, w.value, w.scalar(value))
            return lambda x, p: step(x, torch.tensor(value, dtype=x.dtype))
        if how == "left" and not safe:
            name = w.weight(*w.shape)
            w.emit(op, name, w.value)
            return lambda x, p: step(p[name], x)
        name = w.weight(*broadcastable(w), positive=safe)
        w.emit(op, w.value, name)
        return lambda x, p: step(x, p[name])

    return Row(write, since, exact)


def many(op: str, step: Callable[[T, T], T]) -> Row:
    """Max, Min, Sum of one to three tensors."""

    def write(w: Writer) -> Step:
        names = [w.weight(*broadcastable(w)) for _ in range(w.rng.randrange(3))]
        w.emit(op, w.value, *names)

        def run(x: T, p: Leaves) -> T:
            for name in names:
                x = step(x, p[name])
            return x

        return run

    return Row(write, exact=True)


def power(w: Writer) -> Step:
    kind = w.rng.choice(("square", "integer", "root", "weight"))
    if kind in ("square", "integer"):
        exponent = 2.0 if kind == "square" else w.rng.choice((0.0, 1.0, 3.0))
        if w.opset >= 12 and w.rng.random() < 0.5:
            w.emit("Pow", w.value, w.ints(int(exponent)))
        else:
            w.emit("Pow", w.value, w.scalar(exponent))
        return lambda x, p: x**exponent
    w.emit("Abs", w.value)
    w.emit("Add", w.value, w.scalar(0.5))
    if kind == "root":
        w.emit("Pow", w.value, w.scalar(0.5))
        return lambda x, p: (x.abs() + 0.5) ** 0.5
    name = w.weight(*broadcastable(w))
    w.emit("Pow", w.value, name)
    return lambda x, p: (x.abs() + 0.5) ** p[name]


def clip(w: Writer) -> Step:
    low, high = w.rng.choice(((-0.5, 1.0), (None, 0.5), (-1.0, None), (0.0, 6.0), (None, None)))
    if w.opset < 11:
        w.emit("Clip", w.value, min=low, max=high)
    else:
        bounds = ["" if b is None else w.scalar(b) for b in (low, high)]
        w.emit("Clip", w.value, *bounds)
    if (low, high) == (0.0, 6.0):
        return lambda x, p: fn.relu6(x)
    if low is None and high is None:
        return lambda x, p: x
    return lambda x, p: torch.clamp(x, low, high)


def prelu(w: Writer) -> Step:
    shape = broadcastable(w)
    name = w.weight(*shape)
    w.emit("PRelu", w.value, name)
    return lambda x, p: torch.where(x > 0, x, p[name] * x)


def softmax(op: str) -> Row:
    def write(w: Writer) -> Step:
        axis = w.rng.choice((None, *range(-len(w.shape), len(w.shape))))
        w.emit(op, w.value, axis=axis)
        step = fn.softmax if op == "Softmax" else fn.log_softmax
        if w.opset >= 13:
            return lambda x, p: step(x, -1 if axis is None else axis)
        at = (1 if axis is None else axis) % len(w.shape)

        def flat(x: T, p: Leaves) -> T:
            rows = x.reshape(math.prod(x.shape[:at]), -1)
            return step(rows, 1).reshape(x.shape)

        return flat

    return Row(write)


def compared(op: str, step: Callable[[T, T], T], since: int = 9) -> Row:
    """A choice by a comparison of the value."""

    def write(w: Writer) -> Step:
        source, limit = w.value, float(w.draw(1)[0])
        other = w.weight(*broadcastable(w))
        condition = w.emit(op, source, w.scalar(limit))
        swapped = w.rng.random() < 0.5
        w.emit("Where", condition, *((other, source) if swapped else (source, other)))

        def run(x: T, p: Leaves) -> T:
            chosen = step(x, torch.tensor(limit, dtype=x.dtype))
            return torch.where(chosen, *((p[other], x) if swapped else (x, p[other])))

        return run

    return Row(write, since, exact=True)


def logic(op: str, step: Callable[..., T]) -> Row:
    def write(w: Writer) -> Step:
        source = w.value
        one = w.emit("Greater", source, w.scalar(-0.5))
        two = w.emit("Less", source, w.scalar(0.5))
        w.emit(op, one) if op == "Not" else w.emit(op, one, two)
        w.emit("Where", w.value, source, w.scalar(0.25))

        def run(x: T, p: Leaves) -> T:
            one, two = x > -0.5, x < 0.5
            return torch.where(
                step(one) if op == "Not" else step(one, two), x, torch.full_like(x, 0.25)
            )

        return run

    return Row(write, exact=True)


def bits(op: str, step: Callable[..., T], since: int) -> Row:
    """Of the value's whole part, and of a number beside it."""

    def write(w: Writer) -> Step:
        source, number = w.value, w.rng.randint(-9, 9)
        whole = w.emit("Cast", source, to=onnx.TensorProto.INT64)
        w.emit(op, *((whole,) if op == "BitwiseNot" else (whole, w.ints([number]))))
        w.emit("Mul", w.emit("Cast", w.value, to=ELEM[w.dtype]), source)

        def run(x: T, p: Leaves) -> T:
            whole = x.detach().long()
            made = step(whole) if op == "BitwiseNot" else step(whole, torch.tensor([number]))
            return made.to(x.dtype) * x

        return run

    return Row(write, since, exact=True)


def where(w: Writer) -> Step:
    mask = w.numbers.random(broadcastable(w)) < 0.5
    condition = w.stored(mask)
    name = w.weight(*broadcastable(w))
    w.emit("Where", condition, w.value, name)
    return lambda x, p: torch.where(torch.tensor(mask), x, p[name])


def cast(w: Writer) -> Step:
    kind, source = w.rng.choice(("float", "mask", "int")), w.value
    if kind == "float":
        w.emit("Cast", source, to=ELEM[w.dtype])
        return lambda x, p: x
    if kind == "mask":
        w.emit("Cast", w.emit("Greater", source, w.scalar(0.5)), to=ELEM[w.dtype])
    else:
        w.emit("Cast", w.emit("Cast", source, to=7), to=ELEM[w.dtype])
    w.emit("Mul", w.value, source)
    return lambda x, p: x * ((x > 0.5) if kind == "mask" else x.detach().long()).to(x.dtype)


def cast_like(w: Writer) -> Step:
    """A constant in the value's dtype, or truths in it."""
    source = w.value
    if w.rng.random() < 0.5:
        w.emit("CastLike", w.ints([2]), source)
        w.emit("Mul", w.value, source)
        return lambda x, p: x * 2
    w.emit("CastLike", w.emit("Greater", source, w.scalar(0.5)), source)
    w.emit("Mul", w.value, source)
    return lambda x, p: x * (x > 0.5).to(x.dtype)


def strays(op: str, step: Callable[[T], T], value: float, since: int = 9) -> Row:
    """A choice by what is no finite number."""

    def write(w: Writer) -> Step:
        source = w.value
        wild = w.emit("Where", w.emit("Greater", source, w.scalar(0.0)), w.scalar(value), source)
        w.emit("Where", w.emit(op, wild), w.scalar(0.25), source)
        return lambda x, p: torch.where(x > 0, 0.25, x)

    return Row(write, since, exact=True)


def mod(w: Writer) -> Step:
    value = w.rng.choice((0.75, -1.5))
    if w.rng.random() < 0.5:
        w.emit("Mod", w.value, w.scalar(value), fmod=1)
        return lambda x, p: torch.fmod(x, value)
    name = w.weight(*broadcastable(w), positive=True)
    w.emit("Mod", w.value, name, fmod=1)
    return lambda x, p: x - p[name] * torch.trunc(x / p[name]).detach()


def shrink(w: Writer) -> Step:
    limit, bias = w.rng.choice((None, 0.25)), w.rng.choice((None, 0.5))
    w.emit("Shrink", w.value, lambd=limit, bias=bias)
    low, by = limit or 0.5, bias or 0.0

    def run(x: T, p: Leaves) -> T:
        return torch.where(x < -low, x + by, torch.where(x > low, x - by, torch.zeros_like(x)))

    return run


def floor(op: str, step: Callable[[T], T]) -> Row:
    """Its gradient is zero: the value goes on beside it."""

    def write(w: Writer) -> Step:
        source = w.value
        w.emit(op, source)
        w.emit("Mul", w.value, source)
        return lambda x, p: step(x) * x

    return Row(write, exact=True)


def _row(name: str, record: Elementwise) -> Row:
    """A record's operator, of operands between which it is asked."""
    first = record.torch.partition(" ")[0]
    function = by_pytorch(first.replace(".Scalar", ".Tensor"))
    since = max(9, min(s.since_version for s in onnx.defs.get_all_schemas_with_history()
                       if s.name == name and not s.domain))  # fmt: skip
    if record.takes == "b":
        return logic(name, function)
    if record.takes == "bi":
        return bits(name, function, since)
    if record.gives == "bool":
        return compared(name, function, since)
    exact = record.name in EXACT
    if record.operands == 2:
        return binary(name, function, safe=record.name == "divide", since=since, exact=exact)
    if record.slope == "step":
        return Row(floor(name, function).write, since, True)

    def write(w: Writer) -> Step:
        source = w.value
        low = record.domain[0]
        if low > 0:
            w.emit("Abs", source)
            w.emit("Add", w.value, w.scalar(0.5 if low < 1 else low + 0.5))
        elif record.domain != ALL and low >= -1:
            w.emit("Mul", w.emit("Tanh", source), w.scalar(0.9))
        w.emit(name, w.value)
        return lambda x, p: function(within(record, x))

    return Row(write, since, exact)


_OTHERS = ("IsInf", "IsNaN", "Max", "Min", "Pow")  # which mean more, or are given more

ELEMENTWISE: dict[str, Row] = {
    **{name: _row(name, record) for name, record in by("onnx").items() if name not in _OTHERS},
    "Cast": Row(cast),
    "CastLike": Row(cast_like, 15, exact=True),
    "Celu": numbered("Celu", lambda x, a: fn.celu(x, a), since=12, alpha=1.0),
    "Clip": Row(clip, exact=True),
    "Elu": numbered("Elu", lambda x, a: fn.elu(x, a), alpha=1.0),
    "Gelu": Row(gelu, 20),
    "HardSigmoid": numbered(
        "HardSigmoid", lambda x, a, b: fn.hardtanh(x * a + b, 0.0, 1.0), alpha=0.2, beta=0.5
    ),
    "HardSwish": unary("HardSwish", fn.hardswish, 14),
    "Identity": unary("Identity", lambda x: x, exact=True),
    "IsInf": strays("IsInf", torch.isinf, math.inf, 10),
    "IsNaN": strays("IsNaN", torch.isnan, math.nan),
    "LeakyRelu": numbered("LeakyRelu", lambda x, a: fn.leaky_relu(x, a), exact=True, alpha=0.01),
    "LogSoftmax": softmax("LogSoftmax"),
    "Max": many("Max", torch.maximum),
    "Min": many("Min", torch.minimum),
    "Mish": unary("Mish", fn.mish, 18),
    "Mod": Row(mod, 10),
    "PRelu": Row(prelu, exact=True),
    "Pow": Row(power),
    "Selu": unary("Selu", fn.selu),
    "Shrink": Row(shrink),
    "Softmax": softmax("Softmax"),
    "Softplus": unary("Softplus", fn.softplus),
    "Softsign": unary("Softsign", fn.softsign),
    "Sum": many("Sum", torch.add),
    "Swish": numbered("Swish", lambda x, a: x * torch.sigmoid(a * x), 24, alpha=1.0),
    "ThresholdedRelu": numbered(
        "ThresholdedRelu", lambda x, a: fn.threshold(x, a, 0.0), since=10, exact=True, alpha=1.0
    ),
    "Where": Row(where, exact=True),
}
