"""Every elementwise, moving and reducing op of `from_onnx`'s list, and PyTorch's for it.

A row writes the op at random: attributes, forms of its opset, operands left out.  Layers are in
`tests.onnx_layer_cases`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn

from tests.onnx_writer import ELEM, Leaves, Step, Writer

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


def positive(op: str, step: Callable[[T], T]) -> Row:
    """Of |x| + 1/2."""

    def write(w: Writer) -> Step:
        w.emit("Abs", w.value)
        w.emit("Add", w.value, w.scalar(0.5))
        w.emit(op, w.value)
        return lambda x, p: step(x.abs() + 0.5)

    return Row(write)


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


def floor(op: str, step: Callable[[T], T]) -> Row:
    """Its gradient is zero: the value goes on beside it."""

    def write(w: Writer) -> Step:
        source = w.value
        w.emit(op, source)
        w.emit("Mul", w.value, source)
        return lambda x, p: step(x) * x

    return Row(write, exact=True)


# ---- reductions ----------------------------------------------------------------------------------

AXES_ARE_OPERANDS = {"ReduceSum": 13}  # all others: 18


def reduced(op: str, step: Callable[[T, list[int], bool], T], exact: bool = False) -> Row:
    def write(w: Writer) -> Step:
        rank = len(w.shape)
        count = w.rng.randint(0, rank)
        axes = [a - rank if w.rng.random() < 0.3 else a for a in w.rng.sample(range(rank), count)]
        keep = w.rng.choice((None, 0, 1))
        attributes: dict[str, Any] = {"keepdims": keep}
        operands = [w.value]
        if w.opset >= AXES_ARE_OPERANDS.get(op, 18):
            noop = w.rng.choice((None, 0, 1))
            attributes["noop_with_empty_axes"] = noop
            if axes or w.rng.random() < 0.5:
                operands.append(w.ints(axes))
            if not axes and noop:
                w.emit(op, *operands, **attributes)
                return lambda x, p: x
        elif axes:
            attributes["axes"] = axes
        w.emit(op, *operands, **attributes)
        every = axes or list(range(rank))
        return lambda x, p: step(x, every, keep != 0) if every else x

    return Row(write, exact=exact)


# ---- shapes --------------------------------------------------------------------------------------


def reshape(w: Writer) -> Step:
    total = math.prod(w.shape)
    options = [[0, -1], [-1], [total], [*w.shape[::-1]], [*w.shape, 1]]
    target = w.rng.choice([t for t in options if 0 not in t or len(w.shape) > 1])
    if len(w.shape) > 1 and w.rng.random() < 0.3:  # as exporters flatten
        shape = w.emit("Shape", source := w.value)
        first = w.emit("Gather", shape, w.ints([0]), axis=0)
        w.emit("Reshape", source, w.emit("Concat", first, w.ints([-1]), axis=0))
        return lambda x, p: x.reshape(x.shape[0], -1)
    w.emit("Reshape", w.value, w.ints(target))
    return lambda x, p: x.reshape([x.shape[i] if t == 0 else t for i, t in enumerate(target)])


def flatten(w: Writer) -> Step:
    rank = len(w.shape)
    axis = w.rng.choice((None, *range(-rank if w.opset >= 11 else 0, rank + 1)))
    if axis is None and not rank:
        axis = 0
    w.emit("Flatten", w.value, axis=axis)
    at = 1 if axis is None else axis + rank if axis < 0 else axis
    return lambda x, p: x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))


def unsqueeze(w: Writer) -> Step:
    rank = len(w.shape) + 2
    places = w.rng.sample(range(rank), 2)
    axes = [a - rank if w.opset >= 11 and w.rng.random() < 0.3 else a for a in places]
    _with_axes(w, "Unsqueeze", axes)
    shape = list(w.shape)
    for a in sorted(places):
        shape.insert(a, 1)
    return lambda x, p: x.reshape(shape)


def _with_axes(w: Writer, op: str, axes: list[int]) -> None:
    if w.opset >= 13:
        w.emit(op, w.value, w.ints(axes))
    else:
        w.emit(op, w.value, axes=axes)


def squeeze(w: Writer) -> Step:
    w.then(unsqueeze(w))
    ones = [i for i, s in enumerate(w.shape) if s == 1]
    if w.rng.random() < 0.3:
        w.emit("Squeeze", w.value)
    else:
        ones = w.rng.sample(ones, 1)
        _with_axes(w, "Squeeze", ones)
    shape = [s for i, s in enumerate(w.shape) if i not in ones]
    return lambda x, p: x.reshape(shape)


def transpose(w: Writer) -> Step:
    order = list(range(len(w.shape)))
    w.rng.shuffle(order)
    if w.rng.random() < 0.3:
        w.emit("Transpose", w.value)
        return lambda x, p: x.permute(*range(x.ndim)[::-1])
    w.emit("Transpose", w.value, perm=order)
    return lambda x, p: x.permute(order)


def concat(w: Writer) -> Step:
    axis = w.rng.randrange(-len(w.shape), len(w.shape))
    if w.opset < 11:
        axis %= len(w.shape)
    shape = list(w.shape)
    shape[axis] = w.rng.randint(1, 3)
    names = [w.weight(*shape) for _ in range(w.rng.randrange(3))]
    twice = w.rng.random() < 0.3
    w.emit("Concat", *[w.value] * (1 + twice), *names, axis=axis)
    return lambda x, p: torch.cat([x] * (1 + twice) + [p[n] for n in names], axis)


def split(w: Writer) -> Step:
    axis = w.rng.randrange(len(w.shape))
    total = w.shape[axis]
    count = w.rng.randint(1, min(3, total))
    if total % count or w.rng.random() < 0.5:
        cuts = sorted(w.rng.sample(range(1, total), count - 1))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
        given: Any = sizes
    else:
        sizes, given = [total // count] * count, None
    operands, attributes = [w.value], {"axis": axis if axis or w.rng.random() < 0.5 else None}
    if given is not None and w.opset >= 13:
        operands.append(w.ints(given))
    elif given is not None:
        attributes["split"] = given
    elif w.opset >= 18:
        attributes["num_outputs"] = count
    made = w.emit("Split", *operands, outputs=count, **attributes)
    made = made if count > 1 else [made]
    if w.rng.random() < 0.3:  # one of them alone
        pick = w.rng.randrange(count)
        w.emit("Identity", made[pick])
        return lambda x, p: torch.split(x, sizes, axis)[pick]
    w.emit("Concat", *made[::-1], axis=axis)
    return lambda x, p: torch.cat(torch.split(x, sizes, axis)[::-1], axis)


def pad(w: Writer) -> Step:
    rank = len(w.shape)
    widths = [w.rng.choice((0, 0, 1, 2)) for _ in range(2 * rank)]
    value = w.rng.choice((None, 0.5))
    if w.opset < 11:
        w.emit("Pad", w.value, pads=widths, value=value, mode=w.rng.choice((None, "constant")))
    else:
        w.emit("Pad", w.value, w.ints(widths), "" if value is None else w.scalar(value))
    turned = [v for a in reversed(range(rank)) for v in (widths[a], widths[rank + a])]
    return lambda x, p: fn.pad(x, turned, value=value or 0.0)


def slice_(w: Writer) -> Step:
    rank = len(w.shape)
    axes = w.rng.sample(range(rank), w.rng.randint(1, min(2, rank)))
    starts, ends, steps, cuts = [], [], [], {}
    for axis in axes:
        size = w.shape[axis]
        start = w.rng.randrange(size)
        stop = w.rng.randint(start + 1, size)
        step = w.rng.choice((1, 1, 2, 3, -1, -2)) if w.opset >= 10 else 1
        if step < 0:
            indices = list(range(stop - 1, start - 1, step))
            begin, end = stop - 1, w.rng.choice((start - 1 if start else -size - 1, -(2**31)))
            if end == -(2**31):
                indices = list(range(stop - 1, -1, step))
        else:
            begin, end = (
                start,
                w.rng.choice((stop, 2**31 - 1, stop - size if stop < size else stop)),
            )
            indices = list(range(start, size if end == 2**31 - 1 else stop, step))
        starts.append(begin), ends.append(end), steps.append(step)
        cuts[axis] = indices
    if w.opset < 10:
        w.emit("Slice", w.value, starts=starts, ends=ends, axes=axes)
    else:
        plain = all(s == 1 for s in steps) and w.rng.random() < 0.5
        first = axes == list(range(len(axes))) and plain
        operands = [w.ints(starts), w.ints(ends), "" if first else w.ints(axes)]
        w.emit("Slice", w.value, *operands, "" if plain else w.ints(steps))

    def run(x: T, p: Leaves) -> T:
        for axis, indices in cuts.items():
            x = x.index_select(axis, torch.tensor(indices))
        return x

    return run


def gather(w: Writer) -> Step:
    axis = w.rng.randrange(len(w.shape))
    size = w.shape[axis]
    shape = w.rng.choice(((), (1,), (3,), (2, 2)))
    indices = w.numbers.integers(-size if w.opset >= 11 else 0, size, shape)
    axis_given = axis if axis or w.rng.random() < 0.5 else None
    w.emit("Gather", w.value, w.stored(np.asarray(indices, "int64")), axis=axis_given)
    flat = torch.tensor(np.asarray(indices % size).ravel())
    return lambda x, p: x.index_select(axis, flat).reshape(
        x.shape[:axis] + tuple(shape) + x.shape[axis + 1 :]
    )


def expand(w: Writer) -> Step:
    source, name = w.value, w.weight(*broadcastable(w))
    w.emit("Expand", name, w.ints(list(w.shape)))
    w.emit("Mul", w.value, source)
    return lambda x, p: p[name].expand(x.shape) * x


def tile(w: Writer) -> Step:
    times = [w.rng.choice((1, 1, 2)) for _ in w.shape]
    w.emit("Tile", w.value, w.ints(times))
    return lambda x, p: x.repeat(times)


_COMPARED: dict[str, tuple[Callable[[T, T], T], int]] = {
    "Equal": (torch.eq, 11), "Greater": (torch.gt, 9), "GreaterOrEqual": (torch.ge, 12),
    "Less": (torch.lt, 9), "LessOrEqual": (torch.le, 12),
}  # fmt: skip

ELEMENTWISE: dict[str, Row] = {
    "Abs": unary("Abs", torch.abs, exact=True),
    "Add": binary("Add", torch.add, exact=True),
    "And": logic("And", torch.logical_and),
    "Cast": Row(cast),
    "Ceil": floor("Ceil", torch.ceil),
    "Celu": numbered("Celu", lambda x, a: fn.celu(x, a), since=12, alpha=1.0),
    "Clip": Row(clip, exact=True),
    "Cos": unary("Cos", torch.cos),
    "Div": binary("Div", torch.div, safe=True),
    "Elu": numbered("Elu", lambda x, a: fn.elu(x, a), alpha=1.0),
    "Erf": unary("Erf", torch.erf),
    "Exp": unary("Exp", torch.exp),
    "Floor": floor("Floor", torch.floor),
    "Gelu": Row(gelu, 20),
    "HardSigmoid": numbered(
        "HardSigmoid", lambda x, a, b: fn.hardtanh(x * a + b, 0.0, 1.0), alpha=0.2, beta=0.5
    ),
    "HardSwish": unary("HardSwish", fn.hardswish, 14),
    "Identity": unary("Identity", lambda x: x, exact=True),
    "LeakyRelu": numbered("LeakyRelu", lambda x, a: fn.leaky_relu(x, a), exact=True, alpha=0.01),
    "Log": positive("Log", torch.log),
    "LogSoftmax": softmax("LogSoftmax"),
    "Max": many("Max", torch.maximum),
    "Min": many("Min", torch.minimum),
    "Mish": unary("Mish", fn.mish, 18),
    "Mul": binary("Mul", torch.mul, exact=True),
    "Neg": unary("Neg", torch.neg, exact=True),
    "Not": logic("Not", torch.logical_not),
    "Or": logic("Or", torch.logical_or),
    "PRelu": Row(prelu, exact=True),
    "Pow": Row(power),
    "Reciprocal": positive("Reciprocal", torch.reciprocal),
    "Relu": unary("Relu", fn.relu, exact=True),
    "Round": Row(floor("Round", torch.round).write, 11, True),
    "Selu": unary("Selu", fn.selu),
    "Sigmoid": unary("Sigmoid", torch.sigmoid),
    "Sign": floor("Sign", torch.sign),
    "Sin": unary("Sin", torch.sin),
    "Softmax": softmax("Softmax"),
    "Softplus": unary("Softplus", fn.softplus),
    "Softsign": unary("Softsign", fn.softsign),
    "Sqrt": positive("Sqrt", torch.sqrt),
    "Sub": binary("Sub", torch.sub, exact=True),
    "Sum": many("Sum", torch.add),
    "Tanh": unary("Tanh", torch.tanh),
    "ThresholdedRelu": numbered(
        "ThresholdedRelu", lambda x, a: fn.threshold(x, a, 0.0), since=10, exact=True, alpha=1.0
    ),
    "Where": Row(where, exact=True),
    **{name: compared(name, *how) for name, how in _COMPARED.items()},
    # Of axes
    "ReduceL2": reduced("ReduceL2", lambda x, a, k: torch.linalg.vector_norm(x, dim=a, keepdim=k)),
    "ReduceMax": reduced("ReduceMax", lambda x, a, k: x.amax(a, k), exact=True),
    "ReduceMean": reduced("ReduceMean", lambda x, a, k: x.mean(a, k)),
    "ReduceMin": reduced("ReduceMin", lambda x, a, k: x.amin(a, k), exact=True),
    "ReduceSum": reduced("ReduceSum", lambda x, a, k: x.sum(a, k), exact=True),
    "ReduceSumSquare": reduced("ReduceSumSquare", lambda x, a, k: (x * x).sum(a, k)),
}
MOVING: dict[str, Row] = {
    name: Row(write, exact=True)
    for name, write in {
        "Concat": concat, "Expand": expand, "Flatten": flatten, "Gather": gather, "Pad": pad,
        "Reshape": reshape, "Slice": slice_, "Split": split, "Squeeze": squeeze, "Tile": tile,
        "Transpose": transpose, "Unsqueeze": unsqueeze,
    }.items()
}  # fmt: skip
