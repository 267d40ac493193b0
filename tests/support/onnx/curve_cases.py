"""Products, orders, grids and recurrent layers, and PyTorch's for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn

from tests.support.onnx.op_cases import Row, broadcastable
from tests.support.onnx.shape_cases import reduced
from tests.support.onnx.writer import Leaves, Step, Writer

T = torch.Tensor


def mean(w: Writer) -> Step:
    names = [w.weight(*broadcastable(w)) for _ in range(w.rng.randrange(3))]
    w.emit("Mean", w.value, *names)

    def run(x: T, p: Leaves) -> T:
        for name in names:
            x = x + p[name]
        return x / (1 + len(names))

    return run


def product(x: T, axes: list[int], keep: bool) -> T:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def mean_variance(w: Writer) -> Step:
    w.as_rank(4)
    axes = w.rng.choice((None, [2, 3], [1]))
    w.emit("MeanVarianceNormalization", w.value, axes=axes)
    over = axes or [0, 2, 3]

    def run(x: T, p: Leaves) -> T:
        spread = x.var(over, correction=0, keepdim=True)
        return (x - x.mean(over, keepdim=True)) / (spread.sqrt() + 1e-9)

    return run


def lp_pool(w: Writer) -> Step:
    w.as_rank(w.rng.choice((3, 4)))
    kernel = [w.rng.randint(1, min(3, s)) for s in w.shape[2:]]
    strides = [w.rng.choice((1, 2)) for _ in kernel]
    order = w.rng.choice((None, 1, 2, 3))
    w.emit("LpPool", w.value, kernel_shape=kernel, strides=strides, p=order)
    power = order or 2
    pool: Any = (fn.avg_pool1d, fn.avg_pool2d)[len(kernel) - 1]
    return lambda x, p: (pool(x.abs() ** power, kernel, strides) * math.prod(kernel)) ** (1 / power)


def global_lp_pool(w: Writer) -> Step:
    w.as_rank(w.rng.choice((3, 4, 5)))
    order = w.rng.choice((None, 1, 3))
    w.emit("GlobalLpPool", w.value, p=order)
    power, axes = order or 2, tuple(range(2, len(w.shape)))
    return lambda x, p: (x.abs() ** power).sum(axes, keepdim=True) ** (1 / power)


def top_k(w: Writer) -> Step:
    """What it takes, and sometimes times its places."""
    axis = w.rng.randrange(-len(w.shape), len(w.shape))
    count, largest = w.rng.randint(1, w.shape[axis]), True
    if w.opset < 10:
        w.emit("TopK", w.value, k=count, axis=axis, outputs=2)
        return lambda x, p: x.topk(count, axis)[0]
    given: dict[str, Any] = {"axis": axis if axis != -1 or w.rng.random() < 0.5 else None}
    if w.opset >= 11:
        largest = w.rng.random() < 0.5
        given["largest"] = int(largest)
    values, places = w.emit("TopK", w.value, w.ints([count]), outputs=2, **given)
    if w.ties or w.rng.random() < 0.5:
        return lambda x, p: x.topk(count, axis, largest=largest)[0]
    as_floats = w.emit("CastLike", places, values) if w.opset >= 15 else ""
    if not as_floats:
        w.value = values
        return lambda x, p: x.topk(count, axis, largest=largest)[0]
    w.emit("Mul", as_floats, values)

    def run(x: T, p: Leaves) -> T:
        found = x.topk(count, axis, largest=largest)
        return found[0] * found[1]

    return run


def one_hot(w: Writer) -> Step:
    """Of whether the value is positive, times the value."""
    source, depth = w.value, w.rng.randint(2, 4)
    classes = w.emit("Cast", w.emit("Greater", source, w.scalar(0.0)), to=7)
    if w.rng.random() < 0.5:
        classes = w.emit("Sub", classes, w.ints(1))  # -1 counts from the end
        shift = -1
    else:
        shift = 0
    values = w.stored(np.array([0.5, 2.0], w.dtype))
    w.emit("OneHot", classes, w.ints(depth), values, axis=w.rng.choice((None, -1)))
    w.emit("Mul", w.value, w.emit("Unsqueeze", source, w.ints([-1])) if w.opset >= 13 else
           w.emit("Unsqueeze", source, axes=[len(w.shape)]))  # fmt: skip

    def run(x: T, p: Leaves) -> T:
        hot = fn.one_hot(((x > 0).long() + shift) % depth, depth)
        return (0.5 + 1.5 * hot.to(x.dtype)) * x[..., None]

    return run


def _grid_of(w: Writer) -> tuple[str, tuple[int, ...]]:
    """A parameter: places within and around an image."""
    shape = (w.shape[0], w.rng.randint(1, 3), w.rng.randint(1, 4), 2)
    return w.weight(*shape), shape


def grid_sample(w: Writer) -> Step:
    w.as_rank(4)
    name, _ = _grid_of(w)
    old = w.opset < 20
    mode = w.rng.choice((None, "nearest", "bilinear" if old else "linear"))
    border = w.rng.choice((None, "zeros", "border", "reflection"))
    corners = w.rng.choice((None, 0, 1))
    w.emit("GridSample", w.value, name, mode=mode, padding_mode=border, align_corners=corners)
    theirs = "nearest" if mode == "nearest" else "bilinear"
    return lambda x, p: fn.grid_sample(x, p[name], theirs, border or "zeros", bool(corners))


def affine_grid(w: Writer) -> Step:
    w.as_rank(4)
    n, sizes = w.shape[0], [w.shape[0], 3, w.rng.randint(1, 3), w.rng.randint(2, 4)]
    source, theta = w.value, w.weight(n, 2, 3)
    corners = w.rng.choice((None, 0, 1)) if sizes[2] > 1 else 0
    grid = w.emit("AffineGrid", theta, w.ints(sizes), align_corners=corners)
    w.emit("GridSample", source, grid, align_corners=corners)
    return lambda x, p: fn.grid_sample(
        x, fn.affine_grid(p[theta], sizes, bool(corners)), align_corners=bool(corners)
    )


# ---- recurrent layers ----------------------------------------------------------------------------

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(kind: str) -> Row:
    """Also with the last states; of GRU both forms."""
    gates = _GATES[kind]

    def write(w: Writer) -> Step:
        w.as_rank(3)
        steps, n, features = w.shape
        if steps * n * features > 400:
            raise LookupError("too large")
        size, way = w.rng.randint(1, 3), w.rng.choice(("forward", "reverse", "bidirectional"))
        count = 2 if way == "bidirectional" else 1
        data = w.weight(count, gates * size, features)
        state = w.weight(count, gates * size, size)
        bias = w.weight(count, 2 * gates * size) if w.rng.random() < 0.7 else ""
        firsts = [""] * (1 + (kind == "LSTM"))
        if w.rng.random() < 0.5:
            firsts = [w.weight(count, n, size) for _ in firsts]
        given: dict[str, Any] = {"hidden_size": size}
        given["direction"] = way if way != "forward" or w.rng.random() < 0.5 else None
        after = w.rng.random() < 0.5
        if kind == "GRU":
            given["linear_before_reset"] = int(after)
        relu = kind == "RNN" and w.rng.random() < 0.5
        if relu:
            given["activations"] = ["Relu"] * count
        whole, *_ = w.emit(kind, w.value, data, state, bias, "", *firsts, outputs=2, **given)
        w.value = whole

        def run(x: T, p: Leaves) -> T:
            made = []
            for d in range(count):
                turned = x.flip(0) if way == "reverse" or d else x
                b = p[bias][d] if bias else torch.zeros(2 * gates * size, dtype=x.dtype)
                states = [p[f][d] if f else torch.zeros(n, size, dtype=x.dtype) for f in firsts]
                found = []
                for step in turned:
                    states = _step(
                        kind, step @ p[data][d].T + b[: gates * size], states, p[state][d].T,
                        b[gates * size :], after, relu,
                    )  # fmt: skip
                    found.append(states[0])
                line = torch.stack(found)
                made.append(line.flip(0) if way == "reverse" or d else line)
            return torch.stack(made, 1)

        return run

    return Row(write)


def _step(
    kind: str, given: T, states: list[T], matrix: T, bias: T, after: bool, relu: bool
) -> list[T]:
    h = states[0]
    if kind == "RNN":
        return [torch.relu(given + h @ matrix + bias) if relu else
                torch.tanh(given + h @ matrix + bias)]  # fmt: skip
    if kind == "LSTM":
        i, o, f, c = (given + h @ matrix + bias).chunk(4, -1)
        cell = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(c)
        return [torch.sigmoid(o) * torch.tanh(cell), cell]
    size = h.shape[-1]
    z, r, n = given.chunk(3, -1)
    m = matrix.split(size, 1)
    b = bias.split(size)
    z, r = torch.sigmoid(z + h @ m[0] + b[0]), torch.sigmoid(r + h @ m[1] + b[1])
    own = r * (h @ m[2] + b[2]) if after else (r * h) @ m[2] + b[2]
    return [(1 - z) * torch.tanh(n + own) + z * h]


CURVES: dict[str, Row] = {
    "AffineGrid": Row(affine_grid, 20),
    "GRU": recurrent("GRU"),
    "GlobalLpPool": Row(global_lp_pool),
    "GridSample": Row(grid_sample, 16),
    "LSTM": recurrent("LSTM"),
    "LpPool": Row(lp_pool),
    "Mean": Row(mean),
    "MeanVarianceNormalization": Row(mean_variance),
    "OneHot": Row(one_hot, 11),
    "RNN": recurrent("RNN"),
    "ReduceProd": reduced("ReduceProd", product),
    "TopK": Row(top_k),
}
