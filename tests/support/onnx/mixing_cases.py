"""Resizing, sums of products and attention of `from_onnx`'s list, and PyTorch's for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn

from tests.support.onnx.op_cases import Row, f32, last_axes
from tests.support.onnx.writer import Leaves, Step, Writer

T = torch.Tensor
# ONNX' modes and places that are one of PyTorch's.
_SAME: dict[tuple[str, str], dict[str, Any]] = {
    ("nearest", "asymmetric"): {"mode": "nearest"},
    ("linear", "half_pixel"): {"mode": "bilinear", "align_corners": False},
    ("linear", "align_corners"): {"mode": "bilinear", "align_corners": True},
    ("linear", "pytorch_half_pixel"): {"mode": "bilinear", "align_corners": False},
    ("cubic", "half_pixel"): {"mode": "bicubic", "align_corners": False},
    ("cubic", "pytorch_half_pixel"): {"mode": "bicubic", "align_corners": False},
    ("cubic", "align_corners"): {"mode": "bicubic", "align_corners": True},
}


def resize(w: Writer) -> Step:
    w.as_rank(4)
    scales = [w.rng.choice((1.0, 2.0, 1.5, 0.5, 3.0)) for _ in range(2)]
    sizes = [math.floor(s * f) for s, f in zip(w.shape[2:], scales, strict=True)]
    # Whole numbers, or the ratio is not the scale; and more than one, where places are others.
    if any(s < 2 or s != n * f for s, n, f in zip(sizes, w.shape[2:], scales, strict=True)):
        scales, sizes = [2.0, 3.0], [2 * w.shape[2], 3 * w.shape[3]]
    if w.opset < 11:
        w.emit("Resize", w.value, w.stored(np.array([1, 1, *scales], "float32")), mode="nearest")
        return lambda x, p: fn.interpolate(x, sizes, mode="nearest")
    mode, places = w.rng.choice([*_SAME])
    given: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": places}
    if mode == "nearest":
        given["nearest_mode"] = "floor"
    front: list[int] = [] if w.opset >= 18 and w.rng.random() < 0.4 else [1, 1]
    if not front:
        given["axes"] = [2, w.rng.choice((3, -1))]
    roi = w.stored(np.zeros(0, "float32")) if w.opset < 13 else ""
    if w.rng.random() < 0.5:
        ends = w.ints([*([*w.shape[:2]] if front else []), *sizes])
        none = w.stored(np.zeros(0, "float32")) if w.opset < 13 else ""
        if w.symbolic:  # a batch that is open is no number of the file
            w.emit("Resize", w.value, roi, w.stored(np.array([*front, *scales], "float32")),
                   **given)  # fmt: skip
        else:
            w.emit("Resize", w.value, roi, none, ends, **given)
    else:
        w.emit("Resize", w.value, roi, w.stored(np.array([*front, *scales], "float32")), **given)
    return lambda x, p: fn.interpolate(x, sizes, **_SAME[mode, places])


def upsample(w: Writer) -> Step:
    w.as_rank(4)
    scales = [w.rng.choice((1, 2, 3)) for _ in range(2)]
    w.emit("Upsample", w.value, w.stored(np.array([1, 1, *scales], "float32")))
    return lambda x, p: x.repeat_interleave(scales[0], 2).repeat_interleave(scales[1], 3)


def col2im(w: Writer) -> Step:
    total = math.prod(w.shape)
    kernel = [w.rng.randint(1, 3) for _ in range(2)]
    strides, dilations = ([w.rng.randint(1, 2) for _ in range(2)] for _ in range(2))
    pads = [w.rng.randrange(2) for _ in range(2)]
    size = [w.rng.randint(5, 7) for _ in range(2)]
    counts = [
        (size[i] + 2 * pads[i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in range(2)
    ]
    rows, columns = 2 * math.prod(kernel), math.prod(counts)
    name = w.weight(1, rows, columns, 1)
    flat = w.emit("Reshape", w.value, w.ints([1, 1, 1, total]))
    mixed = w.emit("ReduceSum", w.emit("Mul", flat, name), w.ints([3]), keepdims=0)
    w.emit(
        "Col2Im", mixed, w.ints(size), w.ints(kernel), strides=strides, dilations=dilations,
        pads=pads * 2,
    )  # fmt: skip
    return lambda x, p: fn.fold(
        (x.reshape(1, 1, 1, -1) * p[name]).sum(3), size, kernel, dilations, pads, strides
    )


def einsum(w: Writer) -> Step:
    w.as_rank(w.rng.choice((2, 3)))
    shape = w.shape
    letters = "abc"[: len(shape)]
    last, new = letters[-1], w.rng.randint(1, 3)
    equation, other = w.rng.choice((
        (f"{letters},{last}d->{letters[:-1]}d", (shape[-1], new)),
        (f"{letters},{letters}->{letters[0]}", shape),
        (f"...{last},d{last}->...d", (new, shape[-1])),
        (f"{letters},d{letters[0]}", (new, shape[0])),
    ))  # fmt: skip
    name = w.weight(*other)
    w.emit("Einsum", w.value, name, equation=equation)
    return lambda x, p: torch.einsum(equation, x, p[name])


def attention(w: Writer) -> Step:
    w.as_rank(4)
    n, heads, rows, features = w.shape
    few = 1 if heads > 1 and w.rng.random() < 0.3 else heads
    keys = w.rng.randint(1, 4)
    sizes = [(n, few, keys, features), (n, few, keys, 3)]
    k, v = (w.weight(*size) for size in sizes)
    flat = w.rng.random() < 0.4
    q, given = w.value, [k, v]
    numbers: dict[str, Any] = {}
    if flat:

        def joined(x: str, heads: int, features: int) -> str:
            turned = w.emit("Transpose", x, perm=[0, 2, 1, 3])
            return str(w.emit("Reshape", turned, w.ints([n, -1, heads * features])))

        q, given = joined(q, heads, features), [joined(k, few, features), joined(v, few, 3)]
        numbers = {"q_num_heads": heads, "kv_num_heads": few}
    causal = w.rng.random() < 0.3
    mask = w.weight(rows, keys) if w.rng.random() < 0.3 else ""
    scale, softcap = w.rng.choice((None, 0.5)), w.rng.choice((None, 2.0))
    w.emit(
        "Attention", q, *given, mask, is_causal=int(causal) or None, scale=scale, softcap=softcap,
        **numbers,
    )  # fmt: skip

    def run(x: T, p: Leaves) -> T:
        left, right = (p[name].repeat_interleave(heads // few, 1) for name in (k, v))
        logits = x @ left.mT * (1 / math.sqrt(features) if scale is None else scale)
        logits = softcap * torch.tanh(logits / softcap) if softcap else logits
        if causal:
            kept = torch.ones(rows, keys, dtype=torch.bool).tril()
            logits = torch.where(kept, logits, -math.inf)
        logits = logits + p[mask] if mask else logits
        out = logits.softmax(-1) @ right
        return out.transpose(1, 2).reshape(n, rows, -1) if flat else out

    return run


def rms_norm(w: Writer) -> Step:
    axis, shape, scale = last_axes(w)
    epsilon = w.rng.choice((None, 0.1))
    w.emit("RMSNormalization", w.value, scale, axis=axis, epsilon=epsilon)
    return lambda x, p: fn.rms_norm(x, shape, p[scale], f32(epsilon) if epsilon else 1e-5)


def lp_normalization(w: Writer) -> Step:
    axis = w.rng.randrange(-len(w.shape), len(w.shape))
    order = w.rng.choice((None, 1, 2))
    w.emit("LpNormalization", w.value, axis=axis, p=order)
    return lambda x, p: x / torch.linalg.vector_norm(x, order or 2, dim=axis, keepdim=True)


MIXING: dict[str, Row] = {
    "Attention": Row(attention, 23),
    "Col2Im": Row(col2im, 18),
    "Einsum": Row(einsum, 12),
    "LpNormalization": Row(lp_normalization),
    "RMSNormalization": Row(rms_norm, 23),
    "Resize": Row(resize, 10),
    "Upsample": Row(upsample),
}
