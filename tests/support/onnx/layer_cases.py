"""Every layer, normalization and random op of `from_onnx`'s list, and PyTorch's for it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as fn

from tests.support.onnx.op_cases import Row, f32, last_axes
from tests.support.onnx.writer import Leaves, Step, Writer

T = torch.Tensor


def _same(how: str, sizes: list[int], extents: list[int], strides: list[int]) -> list[int]:
    """Pads (begins, ends) of auto_pad."""
    begins, ends = [], []
    for size, extent, stride in zip(sizes, extents, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        small = total // 2
        begins.append(small if how == "SAME_UPPER" else total - small)
        ends.append(total - begins[-1])
    return begins + ends


def _window(
    w: Writer, kernel: list[int], *, dilate: bool = True
) -> tuple[dict[str, Any], list[int], list[int], list[int]]:
    """(attributes, strides, dilations, pads) of a window that fits."""
    rank = len(kernel)
    sizes = list(w.shape[2:])
    strides = [w.rng.choice((1, 1, 2, 3)) for _ in kernel]
    dilations = [
        w.rng.choice((1, 1, 2)) if dilate and 2 * (k - 1) < s else 1
        for k, s in zip(kernel, sizes, strict=True)
    ]
    pads = [w.rng.randrange(k) for k in kernel * 2]
    given: dict[str, Any] = {}
    auto = w.rng.choice((None, None, None, "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads, dilations = _same(auto, sizes, kernel, strides), [1] * rank
        given["auto_pad"] = auto
    elif auto == "VALID" or w.rng.random() < 0.3:
        pads = [0] * (2 * rank)
        given["auto_pad"] = auto if auto == "VALID" else None
    else:
        given["pads"], given["auto_pad"] = pads, auto
    if any(s != 1 for s in strides) or w.rng.random() < 0.5:
        given["strides"] = strides
    if any(d != 1 for d in dilations) or (dilate and w.rng.random() < 0.5):
        given["dilations"] = dilations
    return given, strides, dilations, pads


def _turned(pads: list[int]) -> list[int]:
    """As `torch.nn.functional.pad` has them: the last axis first."""
    rank = len(pads) // 2
    return [v for a in reversed(range(rank)) for v in (pads[a], pads[rank + a])]


def _kernel(w: Writer) -> list[int]:
    return [w.rng.randint(1, min(3, s)) for s in w.shape[2:]]


def conv(w: Writer) -> Step:
    w.as_rank(w.rng.choice((4, 4, 4, 3, 5)))
    channels = w.shape[1]
    groups = w.rng.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    kernel = _kernel(w)
    out = groups * w.rng.randint(1, 2)
    weight = w.weight(out, channels // groups, *kernel)
    bias = w.weight(out) if w.rng.random() < 0.6 else ""
    given, strides, dilations, pads = _window(w, kernel)
    if w.rng.random() < 0.5:
        given["kernel_shape"] = kernel
    if groups > 1:
        given["group"] = groups
    w.emit("Conv", w.value, weight, bias, **given)
    step: Any = (fn.conv1d, fn.conv2d, fn.conv3d)[len(kernel) - 1]
    return lambda x, p: step(
        fn.pad(x, _turned(pads)), p[weight], p[bias] if bias else None, strides, 0, dilations,
        groups,
    )  # fmt: skip


def conv_transpose(w: Writer) -> Step:
    w.as_rank(w.rng.choice((4, 4, 3, 5)))
    channels = w.shape[1]
    groups = w.rng.choice([g for g in (1, 1, 2) if channels % g == 0])
    kernel = _kernel(w)
    out = w.rng.randint(1, 2)
    weight = w.weight(channels, out, *kernel)
    bias = w.weight(out * groups) if w.rng.random() < 0.6 else ""
    strides = [w.rng.choice((1, 2, 3)) for _ in kernel]
    dilations = [w.rng.choice((1, 1, 2)) for _ in kernel]
    extents = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    extra = [w.rng.randrange(s) for s in strides]
    sizes = [
        (n - 1) * s + e + o for n, s, e, o in zip(w.shape[2:], strides, extents, extra, strict=True)
    ]
    pads = [w.rng.randrange(max(1, min(e, n // 2))) for e, n in zip(extents, sizes, strict=True)]
    pads += [w.rng.randrange(max(1, min(e, n // 2))) for e, n in zip(extents, sizes, strict=True)]
    given: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": groups}
    if any(pads):
        given["pads"] = pads
    if any(extra):
        given["output_padding"] = extra
    w.emit("ConvTranspose", w.value, weight, bias, **given)
    step: Any = (fn.conv_transpose1d, fn.conv_transpose2d, fn.conv_transpose3d)[len(kernel) - 1]

    def run(x: T, p: Leaves) -> T:
        # PyTorch wants an output padding below the stride or dilation: zeros of its own.
        full = step(x, p[weight], None, strides, 0, 0, groups, dilations)
        full = fn.pad(full, _turned([0] * len(extra) + extra))
        for i, size in enumerate(sizes):
            full = full.narrow(2 + i, pads[i], size - pads[i] - pads[len(kernel) + i])
        column = (1, -1, *(1,) * len(kernel))
        return full + p[bias].reshape(column) if bias else full

    return run


def pool(op: str) -> Row:
    def write(w: Writer) -> Step:
        w.as_rank(w.rng.choice((4, 4, 5, 3)))
        kernel = _kernel(w)
        rank = len(kernel)
        most: Any = (fn.max_pool1d, fn.max_pool2d, fn.max_pool3d)[rank - 1]
        mean: Any = (fn.avg_pool1d, fn.avg_pool2d, fn.avg_pool3d)[rank - 1]
        given, strides, _, pads = _window(w, kernel, dilate=False)
        given["kernel_shape"] = kernel
        include = op == "AveragePool" and w.rng.random() < 0.5
        ceil = w.opset >= 10 and "pads" in given and w.rng.random() < 0.4
        if ceil:
            pads = [min(p, k // 2) for p, k in zip(pads[:rank], kernel, strict=True)] * 2
            given |= {"ceil_mode": 1, "pads": pads}
        if include:
            given["count_include_pad"] = 1
        elif op == "AveragePool" and w.rng.random() < 0.3:
            given["count_include_pad"] = 0
        w.emit(op, w.value, **given)
        if op == "MaxPool":
            if ceil:
                return lambda x, p: most(x, kernel, strides, pads[:rank], ceil_mode=True)
            return lambda x, p: most(fn.pad(x, _turned(pads), value=-math.inf), kernel, strides)
        if ceil:
            return lambda x, p: mean(x, kernel, strides, pads[:rank], True, include)

        def run(x: T, p: Leaves) -> T:
            total = mean(fn.pad(x, _turned(pads)), kernel, strides)
            if include:
                return total
            return total / mean(fn.pad(torch.ones_like(x), _turned(pads)), kernel, strides)

        return run

    return Row(write, exact=op == "MaxPool")


def global_pool(op: str) -> Row:
    def write(w: Writer) -> Step:
        w.as_rank(w.rng.choice((4, 5, 3)))
        axes = tuple(range(2, len(w.shape)))
        w.emit(op, w.value)
        if op == "GlobalMaxPool":
            most: Any = (fn.max_pool1d, fn.max_pool2d, fn.max_pool3d)[len(axes) - 1]
            return lambda x, p: most(x, tuple(x.shape[2:]))
        return lambda x, p: x.mean(axes, keepdim=True)

    return Row(write, exact=op == "GlobalMaxPool")


def batch_norm(w: Writer) -> Step:
    w.as_rank(w.rng.choice((4, 4, 4, 5, 2)))
    c = w.shape[1]
    scale, bias = w.weight(c), w.weight(c)
    mean, var = w.weight(c, trained=False), w.weight(c, positive=True, trained=False)
    w.states |= {mean, var}
    epsilon = w.rng.choice((None, 1e-3, 0.1))
    given: dict[str, Any] = {"epsilon": epsilon, "momentum": w.rng.choice((None, 0.8))}
    outputs = 1
    if w.opset >= 14:
        given["training_mode"] = w.rng.choice((None, 0, 1))
        outputs = 3 if given["training_mode"] else 1
    w.emit("BatchNormalization", w.value, scale, bias, mean, var, outputs=outputs, **given)
    train = w.options["bn"] == "train"
    momentum = 0.9 if given["momentum"] is None else f32(0.8)

    def run(x: T, p: Leaves) -> T:
        if "empty" in p:
            return x
        if train:
            axes = [0, *range(2, x.ndim)]
            found = x.mean(axes), x.var(axes, correction=0)
            for name, value in zip((mean, var), found, strict=True):
                p["updates"][name] = p[name] * momentum + value * (1 - momentum)
        return fn.batch_norm(
            x, None if train else p[mean], None if train else p[var], p[scale], p[bias], train,
            0.0, f32(epsilon) if epsilon else 1e-5,
        )  # fmt: skip

    return run


def lrn(w: Writer) -> Step:
    w.as_rank(4)
    size = w.rng.randint(1, 4)
    alpha, beta, bias = (w.rng.choice(v) for v in ((None, 0.5), (None, 0.5), (None, 2.0)))
    w.emit("LRN", w.value, size=size, alpha=alpha, beta=beta, bias=bias)
    a, b, k = alpha or 1e-4, beta or 0.75, bias or 1.0
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2

    def run(x: T, p: Leaves) -> T:
        squares = fn.pad(x * x, (0, 0, 0, 0, low, high)).unfold(1, size, 1).sum(-1)
        return x / (k + a / size * squares) ** b

    return run


def gemm(w: Writer) -> Step:
    w.as_rank(2)
    turn_a, turn_b = w.rng.random() < 0.3, w.rng.random() < 0.5
    m, k = w.shape[::-1] if turn_a else w.shape
    n = w.rng.randint(1, 4)
    weight = w.weight(*((n, k) if turn_b else (k, n)))
    shape = w.rng.choice(((n,), (1, n), (m, 1), (m, n), (1,)))
    bias = w.weight(*shape) if w.opset < 11 or w.rng.random() < 0.7 else ""
    alpha, beta = w.rng.choice((None, 0.5)), w.rng.choice((None, 2.0))
    w.emit(
        "Gemm", w.value, weight, bias, alpha=alpha, beta=beta,
        transA=int(turn_a) or None, transB=int(turn_b) or None,
    )  # fmt: skip

    def run(x: T, p: Leaves) -> T:
        out = (x.T if turn_a else x) @ (p[weight].T if turn_b else p[weight]) * (alpha or 1.0)
        return out + (beta or 1.0) * p[bias] if bias else out

    return run


def matmul(w: Writer) -> Step:
    w.as_rank(w.rng.choice((2, 3, 4)))
    k = w.shape[-1]
    shape = w.rng.choice(((k, 3), (k, 1), (k,), (*w.shape[:-2], k, 2)))
    weight = w.weight(*shape)
    w.emit("MatMul", w.value, weight)
    return lambda x, p: x @ p[weight]


def dropout(w: Writer) -> Step:
    ratio = w.rng.choice((None, 0.25, 0.0))
    if w.opset < 12:
        w.emit("Dropout", w.value, ratio=ratio)
    else:
        operands = ["" if ratio is None else w.scalar(ratio)]
        if w.rng.random() < 0.5:
            operands.append(w.stored(torch.tensor(w.rng.random() < 0.5).numpy()))
        w.emit("Dropout", w.value, *operands, outputs=w.rng.choice((1, 2)))
    if w.options["dropout"] == "off" or ratio == 0.0:
        return lambda x, p: x
    return _drawn(w, lambda x, mask: x * mask)


def _drawn(w: Writer, step: Any) -> Step:
    """A step of the next numbers that are drawn."""
    index = w.draws
    w.draws += 1

    def run(x: T, p: Leaves) -> T:
        return x if "empty" in p else step(x, p["draws"][index])

    return run


def random_op(op: str) -> Row:
    def write(w: Writer) -> Step:
        source = w.value
        if op == "Bernoulli":
            w.emit("Sigmoid", source)
        if op.endswith("Like") or op == "Bernoulli":
            w.emit(op, w.value)
        else:
            w.emit(op, shape=list(w.shape))
        w.emit("Mul", w.value, source)
        if op == "Bernoulli":
            return _drawn(w, lambda x, u: x * (u < torch.sigmoid(x.detach())).to(x.dtype))
        return _drawn(w, lambda x, u: x * u)

    return Row(write, 15 if op == "Bernoulli" else 9)


def layer_norm(w: Writer) -> Step:
    axis, shape, scale = last_axes(w)
    bias = w.weight(*shape) if w.rng.random() < 0.6 else ""
    epsilon = w.rng.choice((None, 0.1))
    w.emit("LayerNormalization", w.value, scale, bias, axis=axis, epsilon=epsilon)
    return lambda x, p: fn.layer_norm(
        x, shape, p[scale], p[bias] if bias else None, f32(epsilon) if epsilon else 1e-5
    )


def instance_norm(w: Writer) -> Step:
    w.as_rank(w.rng.choice((3, 4)))
    scale, bias = w.weight(w.shape[1]), w.weight(w.shape[1])
    epsilon = w.rng.choice((None, 0.1))
    w.emit("InstanceNormalization", w.value, scale, bias, epsilon=epsilon)
    # torch's, as torch.nn.functional's refuses a single value a channel.
    return lambda x, p: torch.group_norm(
        x, x.shape[1], p[scale], p[bias], f32(epsilon) if epsilon else 1e-5
    )


def group_norm(w: Writer) -> Step:
    w.as_rank(w.rng.choice((3, 4)))
    c = w.shape[1]
    groups = w.rng.choice([g for g in (1, 2, c) if c % g == 0])
    scale, bias = w.weight(c), w.weight(c)
    w.emit("GroupNormalization", w.value, scale, bias, num_groups=groups)
    return lambda x, p: torch.group_norm(x, groups, p[scale], p[bias], 1e-5)


def depth_to_space(w: Writer) -> Step:
    w.as_rank(4)
    name = w.weight(8, w.shape[1], 1, 1)
    w.emit("Conv", w.value, name)
    mode = w.rng.choice((None, "DCR", "CRD")) if w.opset >= 11 else None
    w.emit("DepthToSpace", w.value, blocksize=2, mode=mode)

    def run(x: T, p: Leaves) -> T:
        x = fn.conv2d(x, p[name])
        if mode == "CRD":
            return fn.pixel_shuffle(x, 2)
        n, c, h, v = x.shape
        apart = x.reshape(n, 2, 2, c // 4, h, v).permute(0, 3, 4, 1, 5, 2)
        return apart.reshape(n, c // 4, 2 * h, 2 * v)

    return run


def space_to_depth(w: Writer) -> Step:
    w.as_rank(4)
    w.emit("Tile", w.value, w.ints([1, 1, 2, 2]))
    w.emit("SpaceToDepth", w.value, blocksize=2)

    def run(x: T, p: Leaves) -> T:
        n, c, h, v = (x := x.repeat(1, 1, 2, 2)).shape
        apart = x.reshape(n, c, h // 2, 2, v // 2, 2).permute(0, 3, 5, 1, 2, 4)
        return apart.reshape(n, 4 * c, h // 2, v // 2)

    return run


LAYERS: dict[str, Row] = {
    "AveragePool": pool("AveragePool"),
    "BatchNormalization": Row(batch_norm),
    "Conv": Row(conv),
    "ConvTranspose": Row(conv_transpose),
    "DepthToSpace": Row(depth_to_space),
    "Dropout": Row(dropout),
    "Gemm": Row(gemm),
    "GlobalAveragePool": global_pool("GlobalAveragePool"),
    "GlobalMaxPool": global_pool("GlobalMaxPool"),
    "GroupNormalization": Row(group_norm, 21),
    "InstanceNormalization": Row(instance_norm),
    "LRN": Row(lrn),
    "LayerNormalization": Row(layer_norm, 17),
    "MatMul": Row(matmul),
    "MaxPool": pool("MaxPool"),
    "SpaceToDepth": Row(space_to_depth, exact=True),
    **{
        name: random_op(name)
        for name in (
            "Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
        )
    },
}  # fmt: skip

_STRANGERS = """
    BitShift Compress ConvInteger Det DynamicQuantizeLinear EyeLike Hardmax If Loop MatMulInteger
    MaxRoiPool MaxUnpool Multinomial NonMaxSuppression NonZero QLinearConv QLinearMatMul
    QuantizeLinear ReverseSequence RoiAlign RotaryEmbedding Scan TensorScatter Unique FusedConv"""
STRANGERS = tuple(_STRANGERS.split())
"""Ops that are refused by name."""
