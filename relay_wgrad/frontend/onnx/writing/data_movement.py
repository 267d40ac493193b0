"""What moves elements, adds up broadcast ones, makes tensors, and matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ....ops.auxiliary import slice_bounds
from .writer import Names, Row, Writer, dtype, sizes

_LOWEST_INDEX = -(2**63)  # an end before the first element


def _reshape(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    return w.reshape(names[0], sizes(call))


def _permute(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    rank, axes = len(sizes(call)), call.attrs.axes
    order = range(rank)[::-1] if axes is None else [int(a) % rank for a in axes]
    return w.transpose(names[0], list(order))


def _broadcast(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    return w.node("Expand", names[0], w.ints(sizes(call)))


def _collapse(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    """Sums over the axes that the result lacks, or has once."""
    given, wanted = sizes(call.args[0]), sizes(call)
    more = len(given) - len(wanted)
    axes = [
        axis
        for axis, size in enumerate(given)
        if axis < more or (wanted[axis - more] == 1 and size != 1)
    ]
    made = w.node("ReduceSum", names[0], w.ints(axes)) if axes else names[0]
    return w.reshape(made, wanted) if more or not axes else made


def _concat(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    rank, axis = len(sizes(call)), call.attrs.axis
    parts = list(names[0])
    if axis is None:
        parts, axis = [w.reshape(part, [-1]) for part in parts], 0
    return w.node("Concat", *parts, axis=int(axis) % rank)


def _stack(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    shape = sizes(call)
    axis = int(call.attrs.axis) % len(shape)
    one = [1 if a == axis else size for a, size in enumerate(shape)]
    return w.node("Concat", *(w.reshape(part, one) for part in names[0]), axis=axis)


def _split(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    axis = int(call.attrs.axis) % len(sizes(call.args[0]))
    shapes = [tuple(int(v) for v in field.shape.values) for field in call.ty.fields]
    parts = w.ints([shape[axis] for shape in shapes])
    return w.nodes_of("Split", [names[0], parts], len(shapes), axis=axis)


def _slice(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    given = sizes(call.args[0])
    cut = [
        (axis, *bound)
        for axis, (bound, size) in enumerate(zip(slice_bounds(call, given), given, strict=True))
        if bound != (0, size, 1)
    ]
    if not cut:
        return w.node("Identity", names[0])
    ends = [b + n * step for _, b, n, step in cut]
    ends = [_LOWEST_INDEX if end < 0 else end for end in ends]
    lists = [[b for _, b, _, _ in cut], ends, [c[0] for c in cut], [c[3] for c in cut]]
    return w.node("Slice", names[0], *map(w.ints, lists))


def _flip(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    axis = int(call.attrs.axis) % len(sizes(call))
    lists = [[-1], [_LOWEST_INDEX], [axis], [-1]]
    return w.node("Slice", names[0], *map(w.ints, lists))


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge"}


def _pad(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    a = call.attrs
    widths, mode = [int(v) for v in a.pad_width], str(a.pad_mode)
    if mode not in _MODES:
        raise ValueError(f"pad_mode must be one of {', '.join(_MODES)}, got {mode!r}")
    pads = w.ints([*widths[0::2], *widths[1::2]])
    if _MODES[mode] != "constant":
        return w.node("Pad", names[0], pads, mode=_MODES[mode])
    return w.node("Pad", names[0], pads, w.constant(np.asarray(a.pad_value), dtype(call)))


def _take(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    axis, x = call.attrs.axis, names[0]
    if str(call.attrs.mode) not in ("fast", "clip", "raise"):
        raise ValueError(f"mode must be 'fast' or 'clip', got {str(call.attrs.mode)!r}")
    if str(call.attrs.mode) == "clip":
        raise ValueError("mode='clip' is not supported: ONNX refuses indices outside")
    x = w.reshape(x, [-1]) if axis is None else x
    return w.node("Gather", x, names[1], axis=0 if axis is None else int(axis))


def _take_backward(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    """Adds each slice to the place that it was taken from."""
    shape, axis = sizes(call), call.attrs.axis
    if axis is None:
        raise ValueError("axis=None is not supported")
    at, taken = int(axis) % len(shape), len(sizes(call.args[2]))
    others = [a for a in range(len(shape)) if a != at]
    grad = w.transpose(
        names[0],
        [*range(at, at + taken), *range(at), *range(at + taken, len(shape) - 1 + taken)],
    )
    index = w.reshape(names[2], [*sizes(call.args[2]), 1])
    if dtype(call.args[2]) != "int64":
        index = w.node("Cast", index, to=7)
    zeros = w.filled([shape[at], *(shape[a] for a in others)], 0, dtype(call))
    made = w.node("ScatterND", zeros, index, grad, reduction="add")
    order = [at, *others]
    return w.transpose(made, [order.index(a) for a in range(len(shape))])


def _gather_elements(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    return w.node("GatherElements", *names, axis=int(call.attrs.axis))


_SCATTERS = {"update": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _scatter_elements(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    how = str(call.attrs.reduction)
    if how not in _SCATTERS:
        raise ValueError(f"reduction must be one of {', '.join(_SCATTERS)}, got {how!r}")
    return w.node("ScatterElements", *names, axis=int(call.attrs.axis), reduction=_SCATTERS[how])


def _tile(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    given, repeats = sizes(call.args[0]), [int(v) for v in call.attrs.repeats]
    rank = max(len(given), len(repeats))
    x = w.reshape(names[0], [*(1,) * (rank - len(given)), *given])
    return w.node("Tile", x, w.ints([*(1,) * (rank - len(repeats)), *repeats]))


def _cumsum(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    a = call.attrs
    if a.axis is None or dtype(call) != dtype(call.args[0]):
        raise ValueError(f"an axis and the operand's dtype are needed, got {a.axis}, {a.dtype}")
    axis = w.constant(np.asarray(int(a.axis)), "int64")
    return w.node("CumSum", names[0], axis, exclusive=int(bool(a.exclusive)))


def _filled(value: float) -> Row:
    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        return w.filled(sizes(call), value, dtype(call))

    return row


def _full(place: int) -> Row:
    """A scalar operand everywhere."""

    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        value = names[place]
        if dtype(call.args[place]) != dtype(call):
            value = w.node("CastLike", value, w.constant(np.asarray(0), dtype(call)))
        return w.node("Expand", value, w.ints(sizes(call)))

    return row


def _matmul(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    kinds = {dtype(call), *map(dtype, call.args)}
    if len(kinds) > 1:
        raise ValueError(f"one dtype for operands and result is needed, got {sorted(kinds)}")
    return w.node("MatMul", *names)


def _resample(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    """A product with the matrix that its table stands for."""
    tables: list[Any] = [getattr(arg, "value", None) for arg in call.args[1:3]]
    if any(not hasattr(table, "numpy") for table in tables):
        raise ValueError("its index and weight must be constants")
    index, weight = (table.numpy() for table in tables)
    given, axis = sizes(call.args[0]), int(call.attrs["axis"]) % len(sizes(call))
    matrix = np.zeros((given[axis], len(index)), weight.dtype)
    for place, tap in np.argwhere(index >= 0):
        matrix[index[place, tap], place] += weight[place, tap]
    last = [a for a in range(len(given)) if a != axis] + [axis]
    x = w.transpose(names[0], last)
    made = w.node("MatMul", x, w.constant(matrix, dtype(call)))
    return w.transpose(made, [last.index(a) for a in range(len(given))])


ROWS: dict[str, Row] = {
    "relax.broadcast_to": _broadcast,
    "relax.collapse_sum_like": _collapse,
    "relax.collapse_sum_to": _collapse,
    "relax.concat": _concat,
    "relax.cumsum": _cumsum,
    "relax.expand_dims": _reshape,
    "relax.flatten": _reshape,
    "relax.flip": _flip,
    "relax.full": _full(1),
    "relax.full_like": _full(1),
    "relax.gather_elements": _gather_elements,
    "relax.grad.take_backward": _take_backward,
    "relax.matmul": _matmul,
    "relax.nn.batch_flatten": _reshape,
    "relax.nn.pad": _pad,
    "relax.nn.resample": _resample,
    "relax.ones": _filled(1),
    "relax.ones_like": _filled(1),
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.scatter_elements": _scatter_elements,
    "relax.split": _split,
    "relax.squeeze": _reshape,
    "relax.stack": _stack,
    "relax.strided_slice": _slice,
    "relax.take": _take,
    "relax.tile": _tile,
    "relax.zeros": _filled(0),
    "relax.zeros_like": _filled(0),
}
