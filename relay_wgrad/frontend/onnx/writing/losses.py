"""The negative log-likelihood of labels and its gradient: elements that labels name."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .writer import Names, Row, Writer, dtype, elem_type, sizes


def _terms(
    w: Writer, call: relax.Call, names: list[Names], first: int
) -> tuple[str, str, list[int]]:
    """(labels as indices along axis 1, each one's weight of the label's shape, that shape).

    An ignored label may be no class: it reads class 0, and weighs nothing.
    """
    logs, labels = call.args[first : first + 2]
    if len(sizes(logs)) < 2:
        raise ValueError(f"predictions must be (N, classes, …), got {list(sizes(logs))}")
    kind, shape = dtype(logs), list(sizes(labels))
    given = names[first + 1]
    given = given if dtype(labels) == "int64" else w.node("Cast", given, to=elem_type("int64"))
    ignored = w.constant(np.asarray(int(call.attrs.ignore_index)), "int64")
    skip = w.node("Equal", given, ignored)
    safe = w.node("Where", skip, w.constant(np.asarray(0), "int64"), given)
    one = w.constant(np.asarray(1.0), kind)
    if len(names) > first + 2:
        one = w.node("Gather", names[first + 2], safe, axis=0)
    weights = w.node("Where", skip, w.constant(np.asarray(0.0), kind), one)
    weights = w.node("Expand", weights, w.ints(shape))
    return w.reshape(safe, [shape[0], 1, *shape[1:]]), weights, shape


def _nll(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    index, weights, shape = _terms(w, call, names, 0)
    picked = w.reshape(w.node("GatherElements", names[0], index, axis=1), shape)
    each = w.node("Neg", w.node("Mul", picked, weights))
    how = str(call.attrs.reduction)
    if how == "none":
        return each
    total = w.node("ReduceSum", each, keepdims=0)
    return total if how == "sum" else w.node("Div", total, w.node("ReduceSum", weights, keepdims=0))


def _nll_backward(w: Writer, call: relax.Call, names: list[Names]) -> Names:
    index, weights, shape = _terms(w, call, names, 1)
    each = w.node("Neg", w.node("Mul", weights, names[0]))
    if str(call.attrs.reduction) == "mean":
        each = w.node("Div", each, w.node("ReduceSum", weights, keepdims=0))
    each = w.reshape(each, [shape[0], 1, *shape[1:]])
    return w.node("ScatterElements", w.filled(sizes(call), 0, dtype(call)), index, each, axis=1)


ROWS: dict[str, Row] = {
    "relax.grad.nll_loss_backward": _nll_backward,
    "relax.nn.nll_loss": _nll,
}
