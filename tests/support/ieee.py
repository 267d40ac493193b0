"""Expressions that real arithmetic would simplify, compiled for any target, beside NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

VALUES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.25, -3.0], "float64")


# Each of x, y (x in another order) and a number of their type: in Relax, and in NumPy.
Both = tuple[Callable[..., Any], Callable[..., Any]]


CASES: dict[str, Both] = {
    "x * 0": (lambda x, y, k: R.multiply(x, k(0.0)), lambda x, y: x * 0),
    "-0 * x": (lambda x, y, k: R.multiply(k(-0.0), x), lambda x, y: x * -0.0),
    "x * zeros_like": (lambda x, y, k: R.multiply(x, R.zeros_like(x)), lambda x, y: x * 0),
    "x * 0 + y": (lambda x, y, k: R.add(R.multiply(x, k(0.0)), y), lambda x, y: x * 0 + y),
    "0 / x": (lambda x, y, k: R.divide(k(0.0), x), lambda x, y: 0 / x),
    "x / 0": (lambda x, y, k: R.divide(x, k(0.0)), lambda x, y: x / np.float64(0)),
    "0 // x": (lambda x, y, k: R.floor_divide(k(0.0), x), lambda x, y: np.floor(0 / x)),
    "floor_mod(0, x)": (lambda x, y, k: R.floor_mod(k(0.0), x), lambda x, y: np.fmod(0, x)),
    "x - x": (lambda x, y, k: R.subtract(x, x), lambda x, y: x - x),
    "2x - 2x": (lambda x, y, k: R.subtract(_twice(x, k), _twice(x, k)), lambda x, y: 2 * x - 2 * x),
    "x + y - x": (lambda x, y, k: R.subtract(R.add(x, y), x), lambda x, y: x + y - x),
    "x - (y + x)": (lambda x, y, k: R.subtract(x, R.add(y, x)), lambda x, y: x - (y + x)),
    "x + 2^14 - 2^14": (  # rounds
        lambda x, y, k: R.subtract(R.add(x, k(2.0**14)), k(2.0**14)),
        lambda x, y: x + x.dtype.type(2.0**14) - x.dtype.type(2.0**14),
    ),
    "2x == 2x": (
        lambda x, y, k: _number(R.equal(_twice(x, k), _twice(x, k)), k), lambda x, y: x == x,
    ),
    "2x != 2x": (
        lambda x, y, k: _number(R.not_equal(_twice(x, k), _twice(x, k)), k), lambda x, y: x != x,
    ),
    "not x < y": (
        lambda x, y, k: _number(R.logical_not(R.less(x, y)), k), lambda x, y: ~(x < y)
    ),
    "not (x < y or x == y)": (
        lambda x, y, k: _number(R.logical_not(R.logical_or(R.less(x, y), R.equal(x, y))), k),
        lambda x, y: ~((x < y) | (x == y)),
    ),
    "x <= y or y < x": (
        lambda x, y, k: _number(R.logical_or(R.less_equal(x, y), R.less(y, x)), k),
        lambda x, y: (x <= y) | (y < x),
    ),
    "x < y or y < x": (
        lambda x, y, k: _number(R.logical_or(R.less(x, y), R.less(y, x)), k),
        lambda x, y: (x < y) | (y < x),
    ),
    "where(c, x, y) - x": (
        lambda x, y, k: R.subtract(R.where(R.less(y, k(0.0)), x, y), x),
        lambda x, y: np.where(y < 0, x, y) - x,
    ),
}  # fmt: skip


def _twice(x: Any, k: Any) -> Any:
    return R.multiply(x, k(2.0))


def _number(condition: Any, k: Any) -> Any:
    return R.astype(condition, str(k(0.0).ty.dtype))


def wrong(dtype: str, target: Any, pipeline: Any, device: Any) -> list[Any]:
    """The cases whose values are not NumPy's, with both."""
    x, y = (relax.Var(name, relax.TensorType((7,), dtype)) for name in "xy")
    bb = relax.BlockBuilder()
    with bb.function("main", [x, y]):
        with bb.dataflow():
            outs = []
            for relaxed, _ in CASES.values():
                # An operation after each, so that it is fused.
                out = bb.emit(bb.normalize(relaxed(x, y, lambda v: relax.const(v, dtype))))
                outs.append(bb.emit(R.negative(out)))
            result = bb.emit_output(relax.Tuple(outs))
        bb.emit_func_output(result)
    built = tvm.compile(bb.get(), target=target, relax_pipeline=pipeline)
    a = tvm.runtime.tensor(VALUES.astype(_numpy(dtype)), device)
    b = tvm.runtime.tensor(np.roll(VALUES, 2).astype(_numpy(dtype)), device)
    got = relax.VirtualMachine(built, device)["main"](a, b)
    digits = {"bfloat16": 2, "float16": 3}.get(dtype, 6)
    found = []
    with np.errstate(all="ignore"):
        for (name, (_, reference)), value in zip(CASES.items(), got, strict=True):
            narrow = _numpy(dtype)
            want = reference(VALUES.astype(narrow), np.roll(VALUES, 2).astype(narrow))
            have = -value.numpy().astype("float64")
            if not np.allclose(have, want.astype("float64"), 10.0**-digits, 0, equal_nan=True):
                found.append((name, have, want))
    return found


def _numpy(dtype: str) -> Any:
    if dtype != "bfloat16":
        return dtype
    import ml_dtypes

    return ml_dtypes.bfloat16
