"""Every op of `from_onnx`'s list that chooses or places by indices, and PyTorch's for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tests.support.onnx.op_cases import Row, broadcastable
from tests.support.onnx.writer import Leaves, Step, Writer

T = torch.Tensor


def _indices(w: Writer, size: int, shape: tuple[int, ...]) -> np.ndarray:
    least = -size if w.opset >= 11 else 0
    return np.asarray(w.numbers.integers(least, size, shape), "int64")


def _of_data(w: Writer, size: int, shape: tuple[int, ...]) -> str:
    """Indices that depend on the data: whether its elements are positive, as numbers."""
    source, rank = w.value, len(shape)
    flat = w.emit("Reshape", source, w.ints([-1]))
    some = w.emit("Slice", flat, w.ints([0]), w.ints([math.prod(shape)]))
    chosen = w.emit("Cast", w.emit("Greater", some, w.scalar(0.0)), to=7)
    sized = w.emit("Reshape", chosen, w.ints(list(shape) if rank else [1]))
    made: str = w.emit("Sub", sized, w.ints(1)) if size == 1 else sized
    w.value = source
    return made


def _chosen_of_data(x: T, size: int, shape: tuple[int, ...]) -> T:
    made = (x.reshape(-1)[: math.prod(shape)] > 0).long().reshape(shape)
    return (made - 1) % size if size == 1 else made


def gather(w: Writer) -> Step:
    axis = w.rng.randrange(len(w.shape))
    size = w.shape[axis]
    shape = w.rng.choice(((), (1,), (3,), (2, 2)))
    given = axis if axis or w.rng.random() < 0.5 else None
    if w.opset >= 13 and shape and math.prod(w.shape) >= 4 and w.rng.random() < 0.3:
        w.emit("Gather", w.value, _of_data(w, size, shape), axis=given)
        return lambda x, p: x.index_select(
            axis, _chosen_of_data(x, size, shape).reshape(-1)
        ).reshape(x.shape[:axis] + tuple(shape) + x.shape[axis + 1 :])
    indices = _indices(w, size, shape)
    w.emit("Gather", w.value, w.stored(indices), axis=given)
    flat = torch.tensor(np.asarray(indices % size).ravel())
    return lambda x, p: x.index_select(axis, flat).reshape(
        x.shape[:axis] + tuple(shape) + x.shape[axis + 1 :]
    )


def gather_elements(w: Writer) -> Step:
    axis = w.rng.randrange(len(w.shape))
    size = w.shape[axis]
    shape = tuple(w.rng.randint(1, s) for s in w.shape)
    given = axis if axis or w.rng.random() < 0.5 else None
    if w.opset >= 13 and w.rng.random() < 0.3:
        w.emit("GatherElements", w.value, _of_data(w, size, shape), axis=given)
        return lambda x, p: x.gather(axis, _chosen_of_data(x, size, shape))
    indices = _indices(w, size, shape)
    w.emit("GatherElements", w.value, w.stored(indices), axis=given)
    return lambda x, p: x.gather(axis, torch.tensor(indices % size))


def gather_nd(w: Writer) -> Step:
    rank = len(w.shape)
    lead = w.rng.randrange(min(2, rank)) if w.opset >= 12 else 0
    depth = w.rng.randint(1, rank - lead)
    middle = w.rng.choice(((), (2,), (3, 1)))
    sizes = w.shape[lead : lead + depth]
    parts = [_indices(w, s, (*w.shape[:lead], *middle)) for s in sizes]
    w.emit("GatherND", w.value, w.stored(np.stack(parts, -1)), batch_dims=lead or None)
    places = [torch.tensor(p % s) for p, s in zip(parts, sizes, strict=True)]
    if lead:
        batch = torch.arange(w.shape[0]).reshape(-1, *[1] * len(middle))
        places = [batch.expand(places[0].shape), *places]
    return lambda x, p: x[tuple(places)]


def scatter_nd(w: Writer) -> Step:
    rank = len(w.shape)
    depth = w.rng.randint(1, rank)
    sizes, rest = w.shape[:depth], w.shape[depth:]
    reduction = w.rng.choice((None, "none", "add")) if w.opset >= 18 else None
    add = reduction == "add"
    rows = math.prod(sizes)
    some = w.numbers.choice(rows, w.rng.randint(1, rows) if not add else 3, replace=add)
    places = np.stack(np.unravel_index(some, sizes), -1)
    places -= np.asarray(sizes) * (w.numbers.random(places.shape) < 0.3)  # from the end
    updates = w.weight(len(some), *rest)
    w.emit("ScatterND", w.value, w.stored(places), updates, reduction=reduction)
    at = tuple(torch.tensor(places[:, i] % s) for i, s in enumerate(sizes))
    return lambda x, p: x.index_put(at, p[updates], accumulate=add)


def scatter_elements(w: Writer) -> Step:
    axis = w.rng.randrange(len(w.shape))
    reduction = w.rng.choice((None, "none", "add")) if w.opset >= 18 else None
    add = reduction == "add"
    shape = tuple(w.rng.randint(1, s) for s in w.shape)
    indices = _indices(w, w.shape[axis], shape)
    if not add:  # different along the axis
        order = np.argsort(w.numbers.random(w.shape), axis)
        indices = order[tuple(slice(s) for s in shape)]
    updates = w.weight(*shape)
    w.emit("ScatterElements", w.value, w.stored(indices), updates, axis=axis, reduction=reduction)
    at = torch.tensor(indices % w.shape[axis])
    if add:
        return lambda x, p: x.scatter_add(axis, at, p[updates])
    return lambda x, p: x.scatter(axis, at, p[updates])


def trilu(w: Writer) -> Step:
    if len(w.shape) < 2:
        w.as_rank(2)
    k, upper = w.rng.choice((None, -1, 0, 2)), w.rng.choice((None, 0, 1))
    w.emit("Trilu", w.value, "" if k is None else w.ints(k), upper=upper)
    step: Any = torch.tril if upper == 0 else torch.triu
    return lambda x, p: step(x, k or 0)


def cumsum(w: Writer) -> Step:
    axis = w.rng.randrange(len(w.shape))
    given = axis - len(w.shape) if w.rng.random() < 0.3 else axis
    exclusive, reverse = (w.rng.choice((None, 0, 1)) for _ in range(2))
    w.emit("CumSum", w.value, w.ints(given), exclusive=exclusive, reverse=reverse)

    def run(x: T, p: Leaves) -> T:
        x = x.flip(axis) if reverse else x
        total = x.cumsum(axis) - (x if exclusive else 0)
        return total.flip(axis) if reverse else total

    return run


def place(op: str, step: Any) -> Row:
    """ArgMax and ArgMin: what they find is compared, and chooses."""

    def write(w: Writer) -> Step:
        axis = w.rng.randrange(len(w.shape))
        source = w.value
        w.emit(op, source, axis=axis if axis or w.rng.random() < 0.5 else None)
        found = w.emit("Equal", w.value, w.ints(0))
        other = w.weight(*broadcastable(w))
        w.emit("Where", found, source, other)
        return lambda x, p: torch.where(step(x, axis, True) == 0, x, p[other])

    return Row(write, 11)


INDEXING: dict[str, Row] = {
    "ArgMax": place("ArgMax", torch.argmax),
    "ArgMin": place("ArgMin", torch.argmin),
    "CumSum": Row(cumsum, 11, exact=True),
    "Gather": Row(gather, exact=True),
    "GatherElements": Row(gather_elements, 11, exact=True),
    "GatherND": Row(gather_nd, 11, exact=True),
    "ScatterElements": Row(scatter_elements, 11, exact=True),
    "ScatterND": Row(scatter_nd, 11, exact=True),
    "Trilu": Row(trilu, 14, exact=True),
}
