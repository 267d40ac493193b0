"""Tensors that are made element by element and then summed over pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from relay_wgrad.dtypes import numpy_dtype
from tests.support.partition_cases import module

op = relax.op


def wide(emit: Any, x: Any) -> Any:
    return x if str(x.ty.dtype) == "float32" else emit(op.astype(x, "float32"))


def made(emit: Any, g: Any, x: Any, s: Any) -> Any:
    """An activation's gradient, times a number for each channel of an image."""
    slope = emit(op.sigmoid(wide(emit, x)))
    product = emit(op.multiply(emit(op.multiply(wide(emit, g), slope)), s))
    return product if str(g.ty.dtype) == "float32" else emit(op.astype(product, g.ty.dtype))


def gradient(axes: list[int], of_product: bool) -> Any:
    """A body: what is made, and its sums or those of its product with an operand."""

    def body(emit: Any, g: Any, x: Any, s: Any) -> list[Any]:
        t = made(emit, g, x, s)
        added = wide(emit, t)
        if of_product:
            added = emit(op.multiply(added, wide(emit, x)))
        return [t, emit(op.sum(added, axes, keepdims=True))]

    return body


def operands(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    return {"g": (shape, dtype), "x": (shape, dtype), "s": ((shape[0], 1, 1, shape[3]), "float32")}


def arrays(given: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape).astype(numpy_dtype(dtype))
        for name, (shape, dtype) in given.items()
    }


def several(cases: list[tuple[tuple[int, ...], str, list[int], bool]]) -> tuple[Any, list[Any]]:
    """A module of several such, of (shape, dtype, axes, of a product), and its operands."""
    given: dict[str, Any] = {}
    for i, (shape, dtype, _, _) in enumerate(cases):
        given |= {f"{name}{i}": what for name, what in operands(shape, dtype).items()}

    def body(emit: Any, *every: Any) -> list[Any]:
        parts = [every[3 * i : 3 * i + 3] for i in range(len(cases))]
        return [
            result
            for (_, _, axes, of_product), part in zip(cases, parts, strict=True)
            for result in gradient(axes, of_product)(emit, *part)
        ]

    return module(given, body), list(arrays(given).values())
