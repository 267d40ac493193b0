"""`nn.pad` before a convolution or a pool as that operator's own padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ast import Call, Constant, Expr, Function, Op
from ..make import call
from ..rewrite import rewrite
from ..types import TensorType
from .user_hooks import attributes, kernels

# What pads an operator's data: zero, or (None) the least number of its dtype, which a window that
# lies in the padding whole gives too.
_TAKERS: dict[str, int | None] = {
    **{f"nn.{kind}{n}d": 0 for kind in ("conv", "avg_pool") for n in (1, 2, 3)},
    **{f"nn.max_pool{n}d": None for n in (1, 2, 3)},
}


def fold_explicit_padding(function: Function) -> Function:
    """The function with padding that is an operator's own in place of `nn.pad`.  Needs types."""

    def change(old: Expr, node: Expr) -> Expr:
        if not isinstance(node, Call) or not isinstance(node.op, Op):
            return node
        if node.op.name not in _TAKERS:
            return node
        assert isinstance(old, Call)
        return _folded(old, node, node.op.name) or node

    out = rewrite(function, change, dict(kernels(function)))
    assert isinstance(out, Function)
    return out


def _folded(old: Call, node: Call, name: str) -> Call | None:
    pad = node.args[0]
    if not isinstance(pad, Call) or pad.op != Op("nn.pad"):
        return None
    a, padding = attributes(node, name), attributes(pad, "nn.pad")
    layout = str(a.data_layout if "data_layout" in a else a.layout)
    widths = [tuple(pair) for pair in padding.pad_width]
    if padding.pad_mode != "constant" or len(layout) != len(widths) or not layout.isupper():
        return None
    if not _pads_with(pad.args[1], _TAKERS[name], old.args[0]):
        return None
    axes = [axis for axis in "DHW" if axis in layout]
    if any(widths[i] != (0, 0) for i, axis in enumerate(layout) if axis not in axes):
        return None
    added = [widths[layout.index(axis)][side] for side in (0, 1) for axis in axes]
    own = _both_sides(a.padding, len(axes))
    total = tuple(x + y for x, y in zip(own, added, strict=True))
    changes: dict[str, Any] = {"padding": total}
    if min(added) < 0:
        return None
    if "avg_pool" in name and not a.count_include_pad:
        # The zeros of `nn.pad` are counted, those of the pool's own padding are not.
        if any(own) or a.ceil_mode:
            return None
        changes["count_include_pad"] = True
    return call(name, pad.args[0], *node.args[1:], **{**a, **changes})


def _pads_with(value: Expr, wanted: int | None, data: Expr) -> bool:
    ty = data.checked_type
    if not isinstance(value, Constant) or not isinstance(ty, TensorType) or value.data.size != 1:
        return False
    number = value.data.reshape(())[()]
    if wanted is not None:
        return bool(number == wanted)
    dtype = value.data.dtype
    if dtype.kind == "f":
        return bool(number == np.finfo(dtype).min)
    return dtype.kind in "ui" and bool(number == np.iinfo(dtype).min)


def _each(values: Any, count: int) -> Sequence[int]:
    """One number for each axis."""
    given = [values] if isinstance(values, int) else list(values)
    return given * count if len(given) == 1 else given


def _both_sides(values: Any, count: int) -> Sequence[int]:
    """Before each axis, then after each."""
    given = _each(values, count)
    return [*given, *given] if len(given) == count else given
