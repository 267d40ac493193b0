"""What a Relay program computes, by NumPy and PyTorch, without waiting for a compiler.

For programs of tensors with known sizes; functions as values may use nothing from around them.
In float64 where it can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from relay_wgrad import relay
from relay_wgrad.ops.elementwise import by
from relay_wgrad.relay.ast import children
from relay_wgrad.relay.iterative_walks import order
from relay_wgrad.relay.records import lookup

Attrs = Mapping[str, Any]


def evaluate(function: relay.Function, inputs: Mapping[str, np.ndarray]) -> Any:
    """The result: an array, or a tuple of results."""
    return _evaluate(function, {p: inputs[p.name] for p in function.params})


def _evaluate(function: relay.Function, values: dict[Any, Any]) -> Any:
    lets: dict[Any, Any] = {}

    def below(node: Any) -> tuple[Any, ...]:
        if isinstance(node, relay.Let):
            lets[node.var] = node.value
            return (node.body,)
        if isinstance(node, relay.Function):
            return ()
        return (lets[node],) if node in lets else children(node)

    for node in order(function.body, below):
        if node in values or isinstance(node, (relay.Op, relay.Function)):
            continue
        if isinstance(node, relay.Let):
            values[node] = values[node.body]
        elif node in lets:
            values[node] = values[lets[node]]
        elif isinstance(node, relay.Constant):
            values[node] = node.data
        elif isinstance(node, relay.Tuple):
            values[node] = tuple(values[f] for f in node.fields)
        elif isinstance(node, relay.TupleGetItem):
            values[node] = values[node.tuple_value][node.index]
        elif isinstance(node.op, relay.Function):
            given = zip(node.op.params, node.args, strict=True)
            values[node] = _evaluate(node.op, {p: values[a] for p, a in given})
        else:
            attrs = lookup(node.op.name).read(node.attrs)
            values[node] = _of_whole_axes(OPS[node.op.name], attrs, [values[a] for a in node.args])
    return values[function.body]


def _of_whole_axes(op: Any, attrs: Attrs, args: list[Any]) -> Any:
    """What an operator computes; layouts with blocks are merged before, and made after."""
    names = [attrs[name] for name in ("data_layout", "kernel_layout") if name in attrs]
    layouts = names or [attrs.get("layout", "")] * len(args)
    out = attrs.get("out_layout") or next(iter(layouts), "")
    if all(str(layout).isalpha() or not layout for layout in (*layouts, out)):
        return op(attrs, *args)

    def plain(layout: str) -> str:
        return "".join(letter for letter in layout if letter.isupper())

    args = [moved(x, src, plain(src)) for x, src in zip(args, layouts, strict=True)]
    keys = ("data_layout", "kernel_layout", "out_layout", "layout")
    merged = {name: plain(value) if name in keys else value for name, value in attrs.items()}
    return moved(op(merged, *args), plain(out), out)


def moved(x: np.ndarray, src: str, dst: str) -> np.ndarray:
    """In another layout; a number in front of a small letter is the size of that axis' blocks."""
    plain = _unblocked(x, src)
    letters = [letter for letter in src if letter.isupper()]
    parts = re.findall(r"(\d*)([A-Za-z])", dst)
    x = plain.transpose([letters.index(letter) for _, letter in parts if letter.isupper()])
    outer = [letter for _, letter in parts if letter.isupper()]
    for size, letter in parts:
        if size:
            at = outer.index(letter.upper())
            x = x.reshape(*x.shape[:at], x.shape[at] // int(size), int(size), *x.shape[at + 1 :])
            outer.insert(at + 1, letter)
    return x.transpose([outer.index(letter) for _, letter in parts])


def _unblocked(x: np.ndarray, layout: str) -> np.ndarray:
    parts = [letter for _, letter in re.findall(r"(\d*)([A-Za-z])", layout)]
    outer = [letter for letter in parts if letter.isupper()]
    order_ = [i for o in outer for i in (parts.index(o), _at(parts, o.lower())) if i is not None]
    sizes = [
        x.shape[parts.index(o)] * (x.shape[parts.index(o.lower())] if o.lower() in parts else 1)
        for o in outer
    ]
    return x.transpose(order_).reshape(sizes)


def _at(parts: list[str], letter: str) -> int | None:
    return parts.index(letter) if letter in parts else None


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Attrs, x: np.ndarray) -> Any:
        axes = tuple(i % x.ndim for i in a["axis"] or range(x.ndim))
        if a["axis"] and a["exclude"]:
            axes = tuple(i for i in range(x.ndim) if i not in axes)
        if function in (np.argmax, np.argmin):
            return _place_of(function, x, axes, a["keepdims"])
        return function(x, axis=axes, keepdims=a["keepdims"])

    return run


def _place_of(function: Callable[..., Any], x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    """The place among the numbers along several axes, of which the last is innermost."""
    rest = [i for i in range(x.ndim) if i not in axes]
    flat = x.transpose([*rest, *axes]).reshape([x.shape[i] for i in rest] + [-1])
    shape = [1 if i in axes else x.shape[i] for i in range(x.ndim) if keep or i in rest]
    return function(flat, axis=-1).reshape(shape)


def _topk(a: Attrs, x: Any) -> Any:
    places = np.argsort(x if a["is_ascend"] else -x, a["axis"], kind="stable")
    places = np.take(places, range(a["k"]), a["axis"])
    values = np.take_along_axis(x, places, a["axis"])
    both = (values, places.astype(a["dtype"]))
    return {"both": both, "values": both[0], "indices": both[1]}[a["ret_type"]]


def _argsort(a: Attrs, x: Any) -> Any:
    x = x if a["is_ascend"] else -x
    return np.argsort(x, a["axis"], kind="stable").astype(a["dtype"])


def _resize2d(a: Attrs, x: Any) -> Any:
    """Whole numbers of copies of each pixel."""
    for letter, size in zip("HW", a["size"], strict=True):
        axis = a["layout"].index(letter)
        x = x.repeat(size // x.shape[axis], axis)
    return x


def _variance(a: Attrs, x: np.ndarray, mean: np.ndarray) -> Any:
    return _reduction(np.mean)(a, (x - mean) ** 2)


def _along(x: np.ndarray, vector: np.ndarray, axis: int) -> np.ndarray:
    shape = [1] * x.ndim
    shape[axis] = -1
    return vector.reshape(shape)


def _batch_norm(a: Attrs, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    g, b, m, v = (_along(x, p, a["axis"]) for p in (gamma, beta, mean, var))
    return (x - m) / np.sqrt(v + a["epsilon"]) * g + b, mean, var


def _normalized(a: Attrs, x: Any, gamma: Any, beta: Any, axes: tuple[int, ...]) -> Any:
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    out = (x - mean) / np.sqrt(var + a["epsilon"])
    return out * _along(x, gamma, a["axis"]) + _along(x, beta, a["axis"])


def _instance_norm(a: Attrs, x: Any, gamma: Any, beta: Any) -> Any:
    axes = tuple(i for i in range(1, x.ndim) if i != a["axis"] % x.ndim)
    return _normalized(a, x, gamma, beta, axes)


def _l2_normalize(a: Attrs, x: Any) -> Any:
    return x / np.sqrt(np.maximum((x * x).sum(a["axis"], keepdims=True), a["eps"]))


def _softmax(a: Attrs, x: Any) -> Any:
    e = np.exp(x - x.max(a["axis"], keepdims=True))
    return e / e.sum(a["axis"], keepdims=True)


def _lrn(a: Attrs, x: Any) -> Any:
    y = torch.from_numpy(np.moveaxis(x, a["axis"], 1).copy())
    out = F.local_response_norm(y, a["size"], a["alpha"], a["beta"], a["bias"])
    return np.moveaxis(out.numpy(), 1, a["axis"])


def _split(a: Attrs, x: Any) -> Any:
    return tuple(np.split(x, a["indices_or_sections"], a["axis"]))


def _strided_slice(a: Attrs, x: Any) -> Any:
    if a["axes"] is None:  # what is left out is all of an axis
        begin = (*a["begin"], *[0] * x.ndim)[: x.ndim]
        end = (*a["end"], *x.shape[len(a["end"]) :])
        a = {**a, "axes": range(x.ndim), "begin": begin, "end": end}
    strides = tuple(a["strides"]) + (1,) * x.ndim
    where = [slice(None)] * x.ndim
    for i, axis in enumerate(a["axes"]):
        begin, end = a["begin"][i], a["end"][i]
        if a["slice_mode"] == "size":
            end = x.shape[axis] if end == -1 else begin + end
        where[axis] = slice(begin, end, strides[i])
    return x[tuple(where)]


def _slice_like(a: Attrs, x: Any, like: Any) -> Any:
    axes = [i % x.ndim for i in a["axes"] or range(x.ndim)]
    return x[tuple(slice(like.shape[i] if i in axes else None) for i in range(x.ndim))]


def _collapsed(x: Any, shape: tuple[int, ...]) -> Any:
    wide = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(i for i, (n, m) in enumerate(zip(x.shape, wide, strict=True)) if n != m)
    return x.sum(axes, keepdims=True).reshape(shape)


def _reshape(a: Attrs, x: Any) -> Any:
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(a["newshape"])])


def _expand_dims(a: Attrs, x: Any) -> Any:
    at = a["axis"] % (x.ndim + 1)
    return x.reshape(x.shape[:at] + (1,) * a["num_newaxis"] + x.shape[at:])


def _batch_matmul(a: Attrs, x: Any, y: Any) -> Any:
    x = x.swapaxes(1, 2) if a["transpose_a"] else x
    return x @ (y.swapaxes(1, 2) if a["transpose_b"] else y)


def _four(padding: tuple[int, ...]) -> tuple[int, int, int, int]:
    return tuple(padding * (4 // len(padding)))  # type: ignore[return-value]


def _conv(x: Any, w: Any, a: Attrs) -> Any:
    """NCHW and OIHW tensors."""
    top, left, bottom, right = _four(a["padding"])
    x = F.pad(x, (left, right, top, bottom))
    return F.conv2d(x, w, None, a["strides"], 0, a["dilation"], a["groups"])


def _conv2d(a: Attrs, x: Any, w: Any) -> Any:
    x, w = moved(x, a["data_layout"], "NCHW"), moved(w, a["kernel_layout"], "OIHW")
    out = _conv(torch.from_numpy(x.copy()), torch.from_numpy(w.copy()), a).numpy()
    return moved(out, "NCHW", a["out_layout"] or a["data_layout"])


def _conv2d_transpose(a: Attrs, x: Any, w: Any) -> Any:
    x, w = moved(x, a["data_layout"], "NCHW"), moved(w, a["kernel_layout"], "IOHW")
    top, left, bottom, right = _four(a["padding"])
    out = F.conv_transpose2d(
        torch.from_numpy(x.copy()), torch.from_numpy(w.copy()), None, a["strides"], 0,
        a["output_padding"], a["groups"], a["dilation"],
    ).numpy()  # fmt: skip
    out = out[:, :, top : out.shape[2] - bottom, left : out.shape[3] - right]
    return moved(out, "NCHW", a["out_layout"] or a["data_layout"])


def _weight_gradient(a: Attrs, grad: Any, x: Any) -> Any:
    """By PyTorch's derivative of the convolution."""
    grad, x = moved(grad, a["data_layout"], "NCHW"), moved(x, a["kernel_layout"], "NCHW")
    shape = (grad.shape[1], x.shape[1] // a["groups"], *a["kernel_size"])
    kind = torch.from_numpy(x[:0].copy()).dtype
    w = torch.zeros(shape, dtype=kind, requires_grad=True)
    _conv(torch.from_numpy(x.copy()), w, a).backward(torch.from_numpy(grad.copy()))
    assert w.grad is not None
    return moved(w.grad.numpy(), "OIHW", a["out_layout"])


def _pool(a: Attrs, x: torch.Tensor, average: bool) -> torch.Tensor:
    top, left, bottom, right = _four(a["padding"])
    pad = (left, right, top, bottom)
    window, strides = tuple(a["pool_size"]), tuple(a["strides"])
    if not average:
        return F.max_pool2d(F.pad(x, pad, value=-1e9), window, strides)
    out = F.avg_pool2d(F.pad(x, pad), window, strides)
    if a["count_include_pad"]:
        return out
    return out / F.avg_pool2d(F.pad(torch.ones_like(x), pad), window, strides)


def _pooling(average: bool) -> Callable[..., Any]:
    def run(a: Attrs, x: Any) -> Any:
        out = _pool(a, torch.from_numpy(moved(x, a["layout"], "NCHW").copy()), average)
        return moved(out.numpy(), "NCHW", a["layout"])

    return run


def _pooling_grad(average: bool) -> Callable[..., Any]:
    def run(a: Attrs, grad: Any, x: Any) -> Any:
        y = torch.from_numpy(moved(x, a["layout"], "NCHW").copy()).requires_grad_()
        grad = torch.from_numpy(moved(grad, a["layout"], "NCHW").copy())
        _pool(a, y, average).backward(grad)
        assert y.grad is not None
        return moved(y.grad.numpy(), "NCHW", a["layout"])

    return run


def _global(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Attrs, x: Any) -> Any:
        return function(x, (a["layout"].index("H"), a["layout"].index("W")), keepdims=True)

    return run


def _adaptive(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Attrs, x: Any) -> Any:
        y = torch.from_numpy(moved(x, a["layout"], "NCHW").copy())
        return moved(function(y, a["output_size"]).numpy(), "NCHW", a["layout"])

    return run


def _upsampling(a: Attrs, x: Any) -> Any:
    x = x.repeat(int(a["scale_h"]), a["layout"].index("H"))
    return x.repeat(int(a["scale_w"]), a["layout"].index("W"))


def _of_elements(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, *operands: function(*operands)


OPS: dict[str, Callable[..., Any]] = {
    **{name: _of_elements(r.numpy) for name, r in by("relay").items() if r.numpy is not None},
    "topk": _topk,
    "argsort": _argsort,
    "image.resize2d": _resize2d,
    "nn.relu": lambda a, x: np.maximum(x, 0),
    "copy": lambda a, x: x,
    # Of integers too: NumPy makes floats of them where a bound is one.
    "clip": lambda a, x: np.clip(x, a["a_min"], a["a_max"]).astype(x.dtype),
    "cast": lambda a, x: x.astype(a["dtype"]),
    "cast_like": lambda a, x, y: x.astype(y.dtype),
    "nn.leaky_relu": lambda a, x: np.where(x > 0, x, x * a["alpha"]),
    "zeros_like": lambda a, x: np.zeros_like(x),
    "ones_like": lambda a, x: np.ones_like(x),
    "full_like": lambda a, x, y: np.full_like(x, y),
    "zeros": lambda a: np.zeros(a["shape"], a["dtype"]),
    "ones": lambda a: np.ones(a["shape"], a["dtype"]),
    "full": lambda a, x: np.full(a["shape"], x, a["dtype"]),
    "where": lambda a, c, x, y: np.where(c, x, y),
    **{name: _reduction(getattr(np, name))
       for name in ("sum", "mean", "max", "min", "prod", "argmax", "argmin")},
    "all": _reduction(np.all),
    "any": _reduction(np.any),
    "variance": _variance,
    "nn.bias_add": lambda a, x, b: x + _along(x, b, a["axis"]),
    "nn.prelu": lambda a, x, p: np.where(x > 0, x, x * _along(x, p, a["axis"])),
    "nn.softmax": _softmax,
    "nn.log_softmax": lambda a, x: np.log(_softmax(a, x)),
    "nn.lrn": _lrn,
    "nn.layer_norm": lambda a, x, g, b: _normalized(a, x, g, b, (a["axis"],)),
    "nn.instance_norm": _instance_norm,
    "nn.batch_norm": _batch_norm,
    "nn.l2_normalize": _l2_normalize,
    "nn.dropout": lambda a, x: (x, np.ones_like(x)),
    "concatenate": lambda a, xs: np.concatenate(xs, a["axis"]),
    "split": _split,
    "strided_slice": _strided_slice,
    "slice_like": _slice_like,
    "nn.pad": lambda a, x, v: np.pad(x, a["pad_width"], constant_values=v),
    "tile": lambda a, x: np.tile(x, a["reps"]),
    "repeat": lambda a, x: np.repeat(x, a["repeats"], a["axis"]),
    "broadcast_to": lambda a, x: np.broadcast_to(x, a["shape"]),
    "collapse_sum_like": lambda a, x, y: _collapsed(x, y.shape),
    "collapse_sum_to": lambda a, x, s: _collapsed(x, tuple(int(n) for n in s)),
    "reshape": _reshape,
    "reshape_like": lambda a, x, y: x.reshape(y.shape),
    "nn.dense": lambda a, x, w: x @ w.T,
    "nn.batch_matmul": _batch_matmul,
    "stack": lambda a, xs: np.stack(xs, a["axis"]),
    "nn.batch_flatten": lambda a, x: x.reshape(len(x), -1),
    "expand_dims": _expand_dims,
    "squeeze": lambda a, x: np.squeeze(x, a["axis"]),
    "transpose": lambda a, x: x.transpose(a["axes"]),
    "layout_transform": lambda a, x: moved(x, a["src_layout"], a["dst_layout"]),
    "reverse": lambda a, x: np.flip(x, a["axis"]),
    "nn.conv2d": _conv2d,
    "nn.conv2d_transpose": _conv2d_transpose,
    "nn.conv2d_backward_weight": _weight_gradient,
    "nn.max_pool2d": _pooling(average=False),
    "nn.avg_pool2d": _pooling(average=True),
    "nn.max_pool2d_grad": _pooling_grad(average=False),
    "nn.avg_pool2d_grad": _pooling_grad(average=True),
    "nn.global_max_pool2d": _global(np.max),
    "nn.global_avg_pool2d": _global(np.mean),
    "nn.adaptive_max_pool2d": _adaptive(F.adaptive_max_pool2d),
    "nn.adaptive_avg_pool2d": _adaptive(F.adaptive_avg_pool2d),
    "nn.upsampling": _upsampling,
}  # fmt: skip
