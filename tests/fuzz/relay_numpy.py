"""NumPy's value of a call of a Relay operator, for `relay_constants`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = list[Any]
Attrs = Mapping[str, Any]


def value(op: str, arrays: Arrays, attrs: Attrs) -> list[Any] | None:
    """The results, None where they are not told here; of a call whose types are right."""
    rule = _RULES.get(op)
    with np.errstate(all="ignore"):
        found = rule(op, arrays, attrs) if rule is not None else None
    return found if found is None or isinstance(found, list) else [found]


def _wide(a: Any) -> Any:
    return a.astype("float32") if a.dtype == np.float16 else a


def _is_float(a: Any) -> bool:
    return bool(a.dtype.kind == "f")


def _arithmetic(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    a, b = arrays
    if op in ("add", "multiply"):
        function = np.add if op == "add" else np.multiply
        return None if _overflows(function, a, b) else function(a, b)
    if _is_float(a):
        whole: dict[str, Callable[..., Any]] = {
            "divide": np.divide, "power": np.power,
            "trunc_divide": lambda x, y: np.trunc(np.divide(x, y)),
        }  # fmt: skip
        return whole[op](_wide(a), _wide(b)).astype(a.dtype) if op in whole else None
    if op in ("floor_divide", "floor_mod"):
        return (np.floor_divide if op == "floor_divide" else np.mod)(a, b)
    if op in ("left_shift", "right_shift"):
        inside = bool(((b >= 0) & (b < 8 * b.dtype.itemsize)).all())
        return (np.left_shift if op == "left_shift" else np.right_shift)(a, b) if inside else None
    pairs = np.broadcast(a, b)
    each = _quotient if op in ("divide", "trunc_divide") else _remainder
    exact = [each(int(x), int(y)) % 2**64 for x, y in pairs]
    return np.array(exact, "uint64").reshape(pairs.shape).astype(a.dtype)


def _overflows(function: Any, a: Any, b: Any) -> bool:
    """Of 32 and 64 bits, of which TVM tells LLVM that they don't: -2^31 + -2^31 is -2^31."""
    if _is_float(a) or a.dtype.itemsize < 4:
        return False
    exact = function(a.astype(object), b.astype(object))
    return bool(np.any(exact != function(a, b).astype(object)))


def _quotient(x: int, y: int) -> int:
    whole = abs(x) // abs(y) if y else 0
    return whole if (x < 0) == (y < 0) else -whole


def _remainder(x: int, y: int) -> int:
    return x - y * _quotient(x, y) if y else 0


def _reduction(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    a, axis, keep = arrays[0], attrs["axis"], attrs["keepdims"]
    axis = None if axis is None else axis[0]
    if op in ("sum", "prod", "mean"):
        if op == "mean" and not _is_float(a):
            return None
        return getattr(np, op)(_wide(a), axis, dtype=_wide(a).dtype, keepdims=keep).astype(a.dtype)
    found = getattr(np, op)(a, axis, keepdims=keep)
    return found.astype("int32") if op.startswith("arg") else found


def _take(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    a, indices = arrays[0], arrays[1].astype("int64")
    if not a.size or not a.ndim:
        return None
    size = a.size if attrs["axis"] is None else a.shape[attrs["axis"]]
    # NumPy's own "wrap" subtracts the size until an index is inside.
    inside = np.mod(indices, size) if attrs["mode"] == "wrap" else np.clip(indices, 0, size - 1)
    return np.take(a, inside, attrs["axis"])


def _cast(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    a, dtype = arrays[0], np.dtype(attrs["dtype"])
    if _is_float(a) and dtype.kind != "f":
        info = np.iinfo(dtype)
        if not ((a > float(info.min)) & (a < float(info.max))).all():
            return None
    return a.astype(dtype)


def _clip(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    a = arrays[0]
    if _is_float(a):
        wide = a.astype("float64")
        return np.clip(wide, attrs["a_min"], attrs["a_max"]).astype(a.dtype)
    bounded = [int(min(max(int(v), attrs["a_min"]), attrs["a_max"])) for v in a.reshape(-1)]
    return np.array(bounded, a.dtype).reshape(a.shape)


def _slice(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    return arrays[0][slice(attrs["begin"][0], attrs["end"][0], attrs["strides"][0])]


def _reshape(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    a, (first, second) = arrays[0], attrs["newshape"]
    return None if first < -1 else a.reshape(a.shape[0] if first == 0 else first, second)


def _one_hot(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    indices, on, off = arrays
    here = np.arange(attrs["depth"]) == indices[:, None]
    out = np.where(here, on, off).astype(attrs["dtype"])
    return out.T if attrs["axis"] == 0 else out


def _nll_loss(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    predictions, targets, weights = arrays

    def loss(row: Any, target: int) -> float:
        if target == attrs["ignore_index"]:
            return 0.0
        inside = 0 <= target < len(row)
        return float(-weights[target] * row[target]) if inside else float("nan")

    return np.array([loss(p, int(t)) for p, t in zip(predictions, targets, strict=True)], "float32")


def _split(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    return list(np.split(arrays[0], attrs["indices_or_sections"], attrs["axis"]))


def _pad(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    if not arrays[0].ndim:
        return arrays[0]
    given = {"constant_values": arrays[1]} if attrs["pad_mode"] == "constant" else {}
    return np.pad(arrays[0], attrs["pad_width"], attrs["pad_mode"], **given)


def _softmax(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    a = arrays[0]
    if not _is_float(a) or not a.size:
        return None
    wide = a.astype("float64")
    powers = np.exp(wide - wide.max(attrs["axis"], keepdims=True))
    return (powers / powers.sum(attrs["axis"], keepdims=True)).astype(a.dtype)


def _upsampling(op: str, arrays: Arrays, attrs: Attrs) -> Any:
    h, w = attrs["scale_h"], attrs["scale_w"]
    return np.repeat(np.repeat(arrays[0], int(h), 2), int(w), 3) if h % 1 == w % 1 == 0 else None


_RULES: Mapping[str, Callable[[str, Arrays, Attrs], Any]] = {
    **dict.fromkeys(
        ("divide", "floor_divide", "trunc_divide", "mod", "trunc_mod", "floor_mod", "add",
         "multiply", "left_shift", "right_shift", "power"), _arithmetic,
    ),
    **dict.fromkeys(("sum", "prod", "mean", "max", "min", "argmax", "argmin"), _reduction),
    "take": _take, "cast": _cast, "clip": _clip, "strided_slice": _slice, "reshape": _reshape,
    "one_hot": _one_hot, "nn.nll_loss": _nll_loss, "split": _split, "nn.pad": _pad,
    "nn.softmax": _softmax, "nn.upsampling": _upsampling,
    "repeat": lambda op, x, a: np.repeat(x[0], a["repeats"], a["axis"]),
    "tile": lambda op, x, a: np.tile(x[0], a["reps"]),
    "broadcast_to": lambda op, x, a: np.broadcast_to(x[0], a["shape"]),
    "full": lambda op, x, a: np.full(a["shape"], x[0], a["dtype"]),
}  # fmt: skip
TOLD = tuple(_RULES)
