"""What operators ask of the values of their arguments, where these are constants.

A kernel has no way to refuse: an integer divided by zero would end the process, an index out of
range read what is not its own.  What is known before the run is refused here; how the rest is kept
from harm is with each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .table import Call, lookup

Array = np.ndarray[Any, Any]
Check = Callable[[Call, Sequence["Array | None"]], None]


def _divisor(call: Call, values: Sequence[Array | None]) -> None:
    divisor = values[1]
    if divisor is not None and divisor.dtype.kind in "iu" and not divisor.all():
        call.fail(f"an integer divided by zero: the divisor has zeros, got {_some(divisor)}")


def _shift(call: Call, values: Sequence[Array | None]) -> None:
    amount = values[1]
    if amount is None:
        return
    bits = 8 * amount.dtype.itemsize
    if amount.size and not ((amount >= 0) & (amount < bits)).all():
        call.fail(f"shifts by 0 to {bits - 1} bits have a value, got {_some(amount)}")


def _indices(call: Call, values: Sequence[Array | None]) -> None:
    indices = values[1]
    if indices is None or call.attrs["mode"] != "fast":
        return
    shape, axis = call.tensor().shape, call.attrs["axis"]
    sizes = shape if axis is None else (shape[call.axis(axis, len(shape))],)
    known = [size for size in sizes if isinstance(size, int)]
    size = int(np.prod(known, dtype=object)) if known else 1
    outside = indices[(indices < 0) | (indices >= size)]
    if len(known) == len(sizes) and outside.size:
        call.fail(
            f"indices must be in [0, {size}) with mode='fast', which does not check them,"
            f" got {_some(outside)}"
        )


def _classes(call: Call, values: Sequence[Array | None]) -> None:
    targets, count = values[1], call.tensor().shape[1]
    if targets is None or not isinstance(count, int):
        return
    outside = targets[((targets < 0) | (targets >= count)) & (targets != _ignored(call))]
    if outside.size:
        call.fail(f"targets must be in [0, {count}) or ignore_index, got {_some(outside)}")


def _ignored(call: Call) -> int:
    return int(call.attrs["ignore_index"])


_CHECKS: dict[str, tuple[int, Check]] = {
    **dict.fromkeys(
        ("divide", "floor_divide", "trunc_divide", "floor_mod", "mod", "trunc_mod"), (1, _divisor)
    ),
    "left_shift": (1, _shift),
    "right_shift": (1, _shift),
    "take": (1, _indices),
    "nn.nll_loss": (1, _classes),
}


def checked_argument(name: str) -> int | None:
    """Which argument's values an operator asks something of; None if none."""
    found = _CHECKS.get(name)
    return None if found is None else found[0]


def check_values(name: str, types: Sequence[Any], attrs: Any, values: Sequence[Any]) -> None:
    """Raises ValueError naming the operator where a call with these arguments has no value.

    `values` has None for what only the run knows.
    """
    if name in _CHECKS:
        op = lookup(name)
        call = Call(name, op.inputs, tuple(types), op.read(attrs))
        _CHECKS[name][1](call, [None if v is None else np.asarray(v) for v in values])


def _some(values: Array) -> str:
    """An array in a message."""
    flat = values.reshape(-1)
    return ", ".join(str(v) for v in flat[:4]) + (", …" if flat.size > 4 else "")
