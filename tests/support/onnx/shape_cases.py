"""Every reduction and every op of `from_onnx`'s list that moves elements, and PyTorch's for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as fn

from tests.support.onnx.op_cases import Row, broadcastable
from tests.support.onnx.writer import Leaves, Step, Writer

T = torch.Tensor


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


def sequence(w: Writer) -> Step:
    """A part of a sequence of equal parts, the last one maybe smaller."""
    axis = w.rng.randrange(len(w.shape))
    size = w.rng.randint(1, w.shape[axis])
    count = math.ceil(w.shape[axis] / size)
    pick = w.rng.randrange(-count, count)
    sizes = [size] * (w.shape[axis] // size) + [w.shape[axis] % size] * (
        count * size > w.shape[axis]
    )
    given = "" if size == 1 and w.rng.random() < 0.5 else w.ints(w.rng.choice((size, sizes)))
    parts = w.emit("SplitToSequence", w.value, given, axis=axis)
    w.emit("SequenceAt", parts, w.ints(pick))
    return lambda x, p: torch.split(x, size, axis)[pick]


def log_of_sum(w: Writer) -> Step:
    """Of |x| + 1/2."""
    w.emit("Add", w.emit("Abs", w.value), w.scalar(0.5))
    w.then(lambda x, p: x.abs() + 0.5)
    return reduced("ReduceLogSum", lambda x, a, k: x.sum(a, k).log()).write(w)


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


_INSIDE = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def pad(w: Writer) -> Step:
    rank = len(w.shape)
    mode = w.rng.choice((None, "constant", "reflect", "edge", "wrap"))
    mode = "edge" if mode == "wrap" and w.opset < 19 else mode
    least = -1 if w.rng.random() < 0.3 else 0
    widths = [0] * (2 * rank)
    for axis in range(rank):
        most = w.shape[axis] - 1 if mode in _INSIDE else 2
        for end in range(2):
            low = least if w.shape[axis] > 2 else 0
            widths[axis + end * rank] = w.rng.choice((0, 0, low, min(1, most), min(2, most)))
    # What is cut is gone before a border copies: then at most a width of what is left.
    if mode in _INSIDE and least:
        widths = [min(v, 0) for v in widths]
    value = w.rng.choice((None, 0.5)) if mode not in _INSIDE else None
    if w.opset < 11:
        w.emit("Pad", w.value, pads=widths, value=value, mode=mode)
    elif w.opset >= 18 and w.rng.random() < 0.5:
        axes = w.rng.sample(range(rank), rank)
        some = [widths[a] for a in axes] + [widths[a + rank] for a in axes]
        fill = "" if value is None else w.scalar(value)
        w.emit("Pad", w.value, w.ints(some), fill, w.ints(axes), mode=mode)
    else:
        fill = "" if value is None else w.scalar(value)
        w.emit("Pad", w.value, w.ints(widths), fill, mode=mode)

    def run(x: T, p: Leaves) -> T:
        for a in range(rank):
            before, after = widths[a], widths[a + rank]
            x = x.narrow(a, max(-before, 0), x.shape[a] + min(before, 0) + min(after, 0))
            if mode in _INSIDE:
                row = torch.arange(x.shape[a], dtype=torch.float64).reshape(1, 1, -1)
                ends = max(before, 0), max(after, 0)
                places = fn.pad(row, ends, mode=_INSIDE[mode]) if any(ends) else row
                x = x.index_select(a, places.reshape(-1).long())
        if mode in _INSIDE:
            return x
        turned = [max(v, 0) for a in reversed(range(rank)) for v in (widths[a], widths[rank + a])]
        return fn.pad(x, turned, value=value or 0.0)

    return run


def center_crop_pad(w: Writer) -> Step:
    rank = len(w.shape)
    axes = w.rng.sample(range(rank), w.rng.randint(1, rank))
    sizes = [max(1, w.shape[a] + w.rng.randint(-3, 3)) for a in axes]
    if w.rng.random() < 0.3:  # all of them, in order
        axes, sizes = None, [max(1, n + w.rng.randint(-3, 3)) for n in w.shape]
    w.emit("CenterCropPad", w.value, w.ints(sizes), axes=axes)

    def run(x: T, p: Leaves) -> T:
        for a, size in zip(axes or range(rank), sizes, strict=True):
            more = size - x.shape[a]
            before, after = abs(more) // 2, (abs(more) + 1) // 2
            if more < 0:
                x = x.narrow(a, before, size)
            else:
                left, right = [*x.shape], [*x.shape]
                left[a], right[a] = before, after
                x = torch.cat([x.new_zeros(left), x, x.new_zeros(right)], a)
        return x

    return run


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


def expand(w: Writer) -> Step:
    source, name = w.value, w.weight(*broadcastable(w))
    w.emit("Expand", name, w.ints(list(w.shape)))
    w.emit("Mul", w.value, source)
    return lambda x, p: p[name].expand(x.shape) * x


def tile(w: Writer) -> Step:
    times = [w.rng.choice((1, 1, 2)) for _ in w.shape]
    w.emit("Tile", w.value, w.ints(times))
    return lambda x, p: x.repeat(times)


REDUCTIONS: dict[str, Row] = {
    "ReduceL1": reduced("ReduceL1", lambda x, a, k: x.abs().sum(a, k), exact=True),
    "ReduceL2": reduced("ReduceL2", lambda x, a, k: torch.linalg.vector_norm(x, dim=a, keepdim=k)),
    "ReduceLogSum": Row(log_of_sum),
    "ReduceLogSumExp": reduced("ReduceLogSumExp", lambda x, a, k: x.logsumexp(a, k)),
    "ReduceMax": reduced("ReduceMax", lambda x, a, k: x.amax(a, k), exact=True),
    "ReduceMean": reduced("ReduceMean", lambda x, a, k: x.mean(a, k)),
    "ReduceMin": reduced("ReduceMin", lambda x, a, k: x.amin(a, k), exact=True),
    "ReduceSum": reduced("ReduceSum", lambda x, a, k: x.sum(a, k), exact=True),
    "ReduceSumSquare": reduced("ReduceSumSquare", lambda x, a, k: (x * x).sum(a, k)),
}
MOVING: dict[str, Row] = {
    name: Row(write, 18 if name == "CenterCropPad" else 9, exact=True)
    for name, write in {
        "CenterCropPad": center_crop_pad,
        "Concat": concat, "Expand": expand, "Flatten": flatten, "Pad": pad,
        "Reshape": reshape, "SequenceAt": sequence, "Slice": slice_, "Split": split,
        "SplitToSequence": sequence, "Squeeze": squeeze, "Tile": tile, "Transpose": transpose,
        "Unsqueeze": unsqueeze,
    }.items()
}  # fmt: skip
