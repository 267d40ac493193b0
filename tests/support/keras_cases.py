"""What Keras itself computed, as a fixture, and its definition written out in NumPy.

A case has a layer (or JAX's function), its arguments and a seed.  Operands are small integers, so
that every result is exact in float64, and what Keras computed is kept as a hash of it.  NumPy alone
is imported: `tests.fixtures.make_keras` runs where Keras is and TVM is not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).parents[1] / "fixtures" / "keras.json"
Case = dict[str, Any]
Array = np.ndarray[Any, Any]


def load() -> list[Case]:
    return json.loads(PATH.read_text())["cases"]


def name(case: Case) -> str:
    return f"{case['layer']}-{case['seed']}"


def weight_shape(case: Case) -> tuple[int, ...]:
    """As Keras, or JAX, has it."""
    a = case["arguments"]
    if case["layer"] == "lax.conv_transpose":
        return tuple(a["rhs_shape"])
    channels = a["input_shape"][1 if a["data_format"] == "channels_first" else 3]
    if case["layer"] == "Conv2D":
        return (*a["kernel_size"], channels // a["groups"], a["filters"])
    return (*a["kernel_size"], a["filters"], channels)


def operands(case: Case, output_shape: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """(input, weight, cotangent of the output): integers from -4 to 4 in float64."""
    a = case["arguments"]
    # The legacy generator, whose numbers NumPy promises never to change.
    rng = np.random.RandomState(case["seed"])
    shapes = (a.get("input_shape", a.get("lhs_shape")), weight_shape(case), output_shape)
    x, w, v = (rng.randint(-4, 5, shape).astype(np.float64) for shape in shapes)
    return x, w, v


def digest(value: Array) -> str:
    """A hash of exact integers; raises ValueError for anything else."""
    whole = np.asarray(value, np.float64)
    exact = whole.astype("<i4")
    if not np.array_equal(exact, whole):
        raise ValueError("results must be 32-bit integers")
    return hashlib.sha256(np.ascontiguousarray(exact).tobytes()).hexdigest()[:16]


# ---- the definition, from Keras' and TensorFlow's documentation ------------------------------


def _same(size: int, windows: int, kernel: int, stride: int) -> int:
    """TensorFlow's "SAME": the zeros before, of those that make so many windows fit."""
    return max((windows - 1) * stride + kernel - size, 0) // 2


def _seen(tap: int, windows: int, axis: int, a: Any) -> slice:
    """The rows (columns) of a padded image that a tap sees: one for each window."""
    start, stride = tap * a["dilation_rate"][axis], a["strides"][axis]
    return slice(start, start + (windows - 1) * stride + 1, stride)


def _of_one_group(
    big: Array, w: Array, small: Array, before: tuple[int, ...], a: Any
) -> tuple[Array, Array, Array]:
    """Of a convolution from `big` to `small`, NHWC, with HWIO weights, tap by tap: the convolution
    of `big`, and with `small` as its cotangent the gradients by `big` and by the weights."""
    n, p, q, _ = small.shape
    _, h, wide, c = big.shape
    # Zeros all around, more than any tap can reach.
    room = [(n - 1) * s + k * d for n, s, k, d in
            zip((p, q), a["strides"], w.shape, a["dilation_rate"], strict=False)]  # fmt: skip
    inside = (slice(None), slice(before[0], before[0] + h), slice(before[1], before[1] + wide))
    padded = np.zeros((n, room[0] + before[0] + h, room[1] + before[1] + wide, c))
    padded[inside] = big
    spread = np.zeros_like(padded)
    made, by_weights = np.zeros((n, p, q, w.shape[3])), np.zeros_like(w)
    for r in range(w.shape[0]):
        for s in range(w.shape[1]):
            seen = (slice(None), _seen(r, p, 0, a), _seen(s, q, 1, a))
            made += padded[seen] @ w[r, s]
            spread[seen] += small @ w[r, s].T
            by_weights[r, s] = np.tensordot(padded[seen], small, ([0, 1, 2], [0, 1, 2]))
    return made, spread[inside], by_weights


def reference(case: Case) -> dict[str, Array]:
    """{"y", "dx", "dw"} of a Keras layer in its own layouts, from the definition.

    A transposed convolution is the gradient of the convolution from its output's size to its
    input's; so its own gradients are that convolution, and that one's gradient by the weights.
    """
    a, plain = case["arguments"], case["layer"] == "Conv2D"
    first = a["data_format"] == "channels_first"
    x, w, v = operands(case, tuple(case["output_shape"]))
    if first:
        x, v = x.transpose(0, 2, 3, 1), v.transpose(0, 2, 3, 1)
    big, small = (x, v) if plain else (v, x)
    before = tuple(
        _same(big.shape[1 + i], small.shape[1 + i], (w.shape[i] - 1) * a["dilation_rate"][i] + 1,
              a["strides"][i]) if a["padding"] == "same" else 0
        for i in (0, 1)
    )  # fmt: skip
    groups = a.get("groups", 1)
    parts = zip(*(np.split(t, groups, 3) for t in (big, w, small)), strict=True)
    found = zip(*(_of_one_group(*part, before, a) for part in parts), strict=True)
    made, spread, dw = (np.concatenate(pieces, 3) for pieces in found)
    y, dx = (made, spread) if plain else (spread, made)
    if first:
        y, dx = y.transpose(0, 3, 1, 2), dx.transpose(0, 3, 1, 2)
    return {"y": y, "dx": dx, "dw": dw}
