"""Elementwise operators, and those of an axis that softmax and reductions are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ....ops.elementwise import RECORDS, RELAX
from .writer import Names, Row, Writer, dtype, elem_type, sizes

_SAME = {
    **{name: RECORDS[name].onnx for name in RELAX if RECORDS[name].onnx},
    "grad.no_grad": "Identity", "grad.start_checkpoint": "Identity",
    "grad.end_checkpoint": "Identity", "where": "Where",
}  # fmt: skip
"""Relax's name without `relax.` -> ONNX's."""


def _same(op: str) -> Row:
    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        return w.node(op, *names)

    return row


def _of_floats(op: str, names: str) -> Row:
    """With float attributes: Relax's names and ONNX's, as `alpha=alpha`."""
    pairs = [pair.split("=") for pair in names.split()]

    def row(w: Writer, call: relax.Call, given: list[Names]) -> Names:
        return w.node(op, given[0], **{to: float(call.attrs[of]) for to, of in pairs})

    return row


def _chain(*ops: str) -> Row:
    """One after another."""

    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        made = w.node(ops[0], *names)
        for op in ops[1:]:
            made = w.node(op, made)
        return made

    return row


def _number(value: Any) -> float:
    """Of an argument that is a plain number."""
    inner = getattr(value, "value", value)
    return float(getattr(inner, "value", inner))


def _clip(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    kind = dtype(call)
    bounds = [w.constant(np.asarray(_number(v)), kind) for v in call.args[1:3]]
    return w.node("Clip", names[0], *bounds)


def _square(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    return w.node("Mul", names[0], names[0])


def _silu(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    return w.node("Mul", names[0], w.node("Sigmoid", names[0]))


def _gelu(approximate: str) -> Row:
    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        return w.node("Gelu", names[0], approximate=approximate)

    return row


def _cast(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    return w.node("Cast", names[0], to=elem_type(dtype(call)))


def _floor_divide(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    if "float" not in dtype(call):
        raise ValueError(f"of floats alone, got {dtype(call)}")
    return w.node("Floor", w.node("Div", *names))


def _softmax(op: str) -> Row:
    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        return w.node(op, names[0], axis=int(call.attrs.axis))

    return row


# ---- reductions ----------------------------------------------------------------------------------


def axes_of(call: relax.Call) -> list[int]:
    """The axes of a reduction, from 0."""
    rank, axis = len(sizes(call.args[0])), call.attrs.axis
    return list(range(rank)) if axis is None else sorted(int(a) % rank for a in axis)


def _reduced(w: Writer, op: str, x: str, axes: list[int], keepdims: bool) -> str:
    if not axes:  # without axes, ONNX takes all
        return w.node("Identity", x)
    return w.node(op, x, w.ints(axes), keepdims=int(keepdims))


def _reduction(op: str) -> Row:
    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        return _reduced(w, op, names[0], axes_of(call), bool(call.attrs.keepdims))

    return row


def _variance(root: bool) -> Row:
    """The mean square of the distance from the mean."""

    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        axes = axes_of(call)
        apart = w.node("Sub", names[0], _reduced(w, "ReduceMean", names[0], axes, True))
        square = w.node("Mul", apart, apart)
        made = _reduced(w, "ReduceMean", square, axes, bool(call.attrs.keepdims))
        return w.node("Sqrt", made) if root else made

    return row


def _place(op: str) -> Row:
    """The first place of an extremum."""

    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        axis, x = call.attrs.axis, names[0]
        keep = bool(call.attrs.keepdims)
        if axis is None:
            x = w.reshape(x, [-1])
        made = w.node(op, x, axis=0 if axis is None else int(axis), keepdims=int(keep))
        if axis is None:
            made = w.reshape(made, sizes(call))
        return made if dtype(call) == "int64" else _cast(w, call, [made])

    return row


_OTHERS: dict[str, Callable[..., Names]] = {
    "argmax": _place("ArgMax"),
    "argmin": _place("ArgMin"),
    "astype": _cast,
    "clip": _clip,
    "floor_divide": _floor_divide,
    "max": _reduction("ReduceMax"),
    "mean": _reduction("ReduceMean"),
    "min": _reduction("ReduceMin"),
    "nn.gelu": _gelu("none"),
    "nn.gelu_tanh": _gelu("tanh"),
    "nn.leakyrelu": _of_floats("LeakyRelu", "alpha=alpha"),
    "nn.log_softmax": _softmax("LogSoftmax"),
    "nn.silu": _silu,
    "nn.softmax": _softmax("Softmax"),
    "not_equal": _chain("Equal", "Not"),
    "prod": _reduction("ReduceProd"),
    "rsqrt": _chain("Sqrt", "Reciprocal"),
    "square": _square,
    "std": _variance(True),
    "sum": _reduction("ReduceSum"),
    "variance": _variance(False),
}
ROWS: dict[str, Row] = {
    f"relax.{name}": row
    for name, row in {**{n: _same(op) for n, op in _SAME.items()}, **_OTHERS}.items()
}
