"""Calls of Relay's operators with their expected results, from NumPy or PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from relay_wgrad.ops.elementwise import BINARY, UNARY, by
from tests.support.records import within

from . import (
    box_cases,
    image_cases,
    index_cases,
    line_cases,
    place_cases,
    random_cases,
    vision_cases,
    volume_cases,
)
from .op_case import Case, by_torch, flags, positive, real, whole


def _erf(x: torch.Tensor) -> torch.Tensor:
    return torch.erf(x)


def _pair(name: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Two operands that broadcast, of a kind, for which the operator is defined."""
    if kind == "b":
        return flags(3, 4), flags(4)
    if kind == "i":
        return whole(3, 4), whole(4, low=1)
    left = positive if name == "power" else real
    return left(2, 1, 3), (positive if name in ("floor_divide", "floor_mod", "mod") else real)(4, 1)


def _elementwise() -> Iterator[Case]:
    x = real(2, 3)
    odd = np.array([1, np.nan, np.inf, -np.inf], "float32")
    for name, record in by("relay", UNARY).items():
        if record.numpy is not None:
            kind = record.takes.replace("bi", "i").replace("fi", "f")
            given = {"b": flags(4), "i": whole(4)}.get(kind, within(record, x, np.tanh))
            yield Case(name, (odd if record.gives == "bool" else given,), record.numpy)
    for name, record in by("relay", BINARY).items():
        assert record.numpy is not None
        for kind in record.takes:
            yield Case(name, _pair(name, kind), record.numpy)
    for name in ("zeros_like", "ones_like"):
        yield Case(name, (x,), getattr(np, name))
    yield Case("round", (x * 3,), np.round)  # halves: test_lower.py
    yield Case("copy", (x,), lambda x: x)
    for name in ("annotation.compiler_begin", "annotation.compiler_end"):
        yield Case(name, (x,), lambda x: x, {"compiler": "mine"})
    yield Case("annotation.stop_fusion", (x,), lambda x: x)
    yield Case("erf", (x,), by_torch(_erf))
    yield Case("nn.relu", (x,), lambda x: np.maximum(x, 0))
    yield Case("negative", (whole(4),), np.negative)
    yield Case("add", (real(2, dtype="float16"), real(2, dtype="float16")), np.add)
    m, n = whole(3, 4), whole(4, low=1)
    yield Case("trunc_mod", (m, n), np.fmod)
    yield Case("trunc_mod", (real(4), positive(4)), np.fmod)
    for name in ("divide", "trunc_divide"):
        yield Case(name, (m, n), lambda m, n: np.trunc(m / n).astype("int32"))
    yield Case("trunc_divide", (real(4) * 5, positive(4)), lambda a, b: np.trunc(a / b))
    yield Case("clip", (x,), lambda x: np.clip(x, -0.5, 1), {"a_min": -0.5, "a_max": 1})
    yield Case("clip", (m,), lambda x: np.clip(x, 0, 6), {"a_min": 0.0, "a_max": 6.0})
    yield Case("where", (flags(2, 1), x, real(3)), np.where)
    yield Case("where", (whole(2, 1, low=0, high=2), x, real(1)), np.where)
    yield Case("cast", (x * 5,), lambda x: x.astype("int32"), {"dtype": "int32"})
    yield Case("cast", (x,), lambda x: x.astype("float16"), {"dtype": "float16"})
    yield Case("cast_like", (m, x), lambda m, x: m.astype("float32"))


def _reductions() -> Iterator[Case]:
    x = real(2, 3, 4)
    for name in ("sum", "mean", "max", "min", "prod"):
        f = getattr(np, name)
        yield Case(name, (x,), f)
        yield Case(name, (x,), lambda x, f=f: f(x, 1, keepdims=True),
                   {"axis": [-2], "keepdims": True})  # fmt: skip
        yield Case(name, (x,), lambda x, f=f: f(x, (0, 2)), {"axis": [1], "exclude": True})
    yield Case("sum", (x,), np.sum, {"axis": [], "exclude": True})
    yield Case("sum", (x,), lambda x: x, {"axis": [0, 1, 2], "exclude": True})
    yield Case("sum", (whole(2, 3),), lambda x: np.sum(x, 0, dtype="int32"), {"axis": 0})
    for name in ("all", "any"):
        f = getattr(np, name)
        yield Case(name, (flags(3, 2),), lambda x, f=f: f(x, 1), {"axis": [1]})
    ties = whole(3, 4, low=0, high=2)
    for name in ("argmax", "argmin"):
        yield Case(name, (ties,), lambda x, f=name: 3 - getattr(np, f)(x[:, ::-1], 1),
                   {"axis": [1], "select_last_index": True})  # fmt: skip
        yield Case(name, (ties,), lambda x, f=name: 11 - getattr(np, f)(x[::-1, ::-1]),
                   {"select_last_index": True})  # fmt: skip
        f = getattr(np, name)
        yield Case(name, (x,), lambda x, f=f: f(x, 1).astype("int32"), {"axis": [1]})
        yield Case(name, (x,), lambda x, f=f: np.asarray(f(x), "int32"))
        yield Case(name, (x,), lambda x, f=f: f(x, 2, keepdims=True).astype("int32"),
                   {"axis": [2], "keepdims": True})  # fmt: skip
    yield Case("variance", (x, x.mean(1, keepdims=True)), lambda x, m: x.var(1), {"axis": [1]})
    yield Case("variance", (x, x.mean((0, 2), keepdims=True)),
               lambda x, m: x.var((0, 2), ddof=1, keepdims=True),
               {"axis": [0, 2], "unbiased": True, "keepdims": True})  # fmt: skip


def _shapes() -> Iterator[Case]:
    x = real(2, 3, 4)
    for codes, shape in (
        ([4, 0, 2], (4, 3, 2)), ([-1, 1, 0], (6, 1, 4)), ([-2], (2, 3, 4)), ([6, 1, -2], (6, 1, 4)),
        ([-3, -2], (6, 4)), ([-3, 0], (6, 4)), ([-4, 1, 2, -2], (1, 2, 3, 4)), ([0, -3], (2, 12)),
        ([-4, -1, 2, 3, 4], (1, 2, 3, 4)), ([2, -4, -1, 3, -2], (2, 1, 3, 4)), ([0, -1], (2, 12)),
        ([-4, 2, -1, -3, 1, 1], (2, 1, 12, 1, 1)), ([24], (24,)),
    ):  # fmt: skip
        yield Case("reshape", (x,), lambda x, s=shape: x.reshape(s), {"newshape": codes})
    yield Case("reshape_like", (x, real(6, 4)), lambda x, y: x.reshape(6, 4))
    yield Case("reshape_like", (x, real(5, 2, 6)), lambda x, y: x.reshape(2, 2, 6),
               {"lhs_begin": 1, "rhs_begin": -2})  # fmt: skip
    yield Case("nn.batch_flatten", (x,), lambda x: x.reshape(2, 12))
    yield Case("transpose", (x,), lambda x: x.T, {"axes": None})
    yield Case("transpose", (x,), lambda x: x.transpose(2, 0, 1), {"axes": [-1, 0, 1]})
    yield Case("expand_dims", (x,), lambda x: x.reshape(2, 3, 4, 1, 1),
               {"axis": -1, "num_newaxis": 2})  # fmt: skip
    yield Case("expand_dims", (x,), lambda x: x[:, None], {"axis": 1})
    yield Case("squeeze", (real(1, 2, 1),), np.squeeze)
    yield Case("squeeze", (real(1, 2, 1),), lambda x: x[..., 0], {"axis": [-1]})
    yield Case("broadcast_to", (real(3, 1),), lambda x: np.broadcast_to(x, (2, 3, 4)),
               {"shape": [2, 3, 4]})  # fmt: skip
    yield Case("broadcast_to_like", (real(3, 1), x), lambda a, b: np.broadcast_to(a, b.shape))
    yield Case("collapse_sum_like", (x, real(3, 1)), lambda x, y: x.sum((0, 2))[:, None])
    yield Case("collapse_sum_like", (x, x), lambda x, y: x)
    yield Case("collapse_sum_to", (x, np.array([1, 4], "int32")),
               lambda x, s: x.sum((0, 1))[None], {"shape": [1, 4]})  # fmt: skip
    for reps in ((2,), (1, 2, 3), (2, 1, 1, 2)):
        yield Case("tile", (x,), lambda x, r=reps: np.tile(x, r), {"reps": reps})
    yield Case("repeat", (x,), lambda x: np.repeat(x, 3, 1), {"repeats": 3, "axis": -2})
    y = real(2, 8, 3, 4)
    yield Case("layout_transform", (y,), lambda y: y.transpose(0, 2, 3, 1),
               {"src_layout": "NCHW", "dst_layout": "NHWC"})  # fmt: skip
    blocked = y.reshape(2, 2, 4, 3, 4).transpose(0, 1, 3, 4, 2)
    yield Case("layout_transform", (y,), lambda y: blocked,
               {"src_layout": "NCHW", "dst_layout": "NCHW4c"})  # fmt: skip
    yield Case("layout_transform", (np.ascontiguousarray(blocked),),
               lambda b: y.reshape(2, 4, 2, 3, 4).transpose(0, 3, 4, 1, 2),
               {"src_layout": "NCHW4c", "dst_layout": "NHWC2c"})  # fmt: skip


def _selections() -> Iterator[Case]:
    x, y = real(2, 3, 4), real(2, 5, 4)
    yield Case("concatenate", ((x, y),), lambda t: np.concatenate(t, 1), {"axis": -2})
    yield Case("concatenate", ((x,),), lambda t: t[0])
    yield Case("stack", ((x, x + 1),), lambda t: np.stack(t, 3), {"axis": -1})
    yield Case("stack", ((x,),), lambda t: t[0][None])
    yield Case("split", (x,), lambda x: np.split(x, 2, 2),
               {"indices_or_sections": 2, "axis": -1})  # fmt: skip
    yield Case("split", (y,), lambda y: np.split(y, [1, 3], 1),
               {"indices_or_sections": [1, 3], "axis": 1})  # fmt: skip
    yield Case("split", (x,), lambda x: [x], {"indices_or_sections": 1})

    def sliced(begin: Any, end: Any, strides: Any = (1,), **more: Any) -> dict[str, Any]:
        return {"begin": begin, "end": end, "strides": strides, **more}

    for attrs, index in (
        (sliced([0, 1], [2, 3]), np.s_[:, 1:3]),
        (sliced([0, -2, 1], [9, -1, 4], [1, 1, 2]), np.s_[:, -2:-1, 1:4:2]),
        (sliced([1, 2, 3], [-9, 0, -9], [-1, -2, -1]), np.s_[::-1, 2:0:-2, ::-1]),
        (sliced([1], [3], [1], axes=[-1]), np.s_[..., 1:3]),
        (sliced([0, 1, 1], [-1, 2, -1], slice_mode="size"), np.s_[:, 1:3, 1:]),
        (sliced([0], [2]), np.s_[:]),
    ):
        yield Case("strided_slice", (x,), lambda x, i=index: x[i], attrs)
    yield Case("slice_like", (y, x), lambda y, x: y[:, :3], {"axes": [1]})
    yield Case("slice_like", (y, real(1, 2)), lambda y, x: y[:1, :2], {"axes": None})
    rows = np.array([[0, 2], [5, -1]], "int32")
    yield Case("take", (x, rows), lambda x, i: np.take(x, i, 1, mode="clip"), {"axis": 1})
    yield Case("take", (x, rows), lambda x, i: np.take(x, i, mode="wrap"), {"mode": "wrap"})
    yield Case("take", (x, rows % 3), lambda x, i: np.take(x, i, 1), {"axis": 1, "mode": "fast"})
    yield Case("reverse", (x,), lambda x: x[:, ::-1], {"axis": 1})
    widths = [[0, 0], [1, 2], [0, 3]]
    zero, two = np.zeros((), "float32"), np.array(2, "float32")
    yield Case("nn.pad", (x, two), lambda x, v: np.pad(x, widths, constant_values=2),
               {"pad_width": widths})  # fmt: skip
    yield Case("nn.pad", (x, zero), lambda x, v: np.pad(x, widths, "edge"),
               {"pad_width": widths, "pad_mode": "edge"})  # fmt: skip
    yield Case("nn.pad", (x, zero), lambda x, v: np.pad(x, widths, "reflect"),
               {"pad_width": widths, "pad_mode": "reflect"})  # fmt: skip
    for f in (np.zeros, np.ones):
        yield Case(f.__name__, (), lambda f=f: f((2, 3), "float16"),
                   {"shape": [2, 3], "dtype": "float16"})  # fmt: skip
    yield Case("full", (two,), lambda v: np.full((2, 3), v), {"shape": [2, 3]})
    yield Case("full", (two,), lambda v: np.full(2, 2, "int32"), {"shape": [2], "dtype": "int32"})
    yield Case("full_like", (x, two), np.full_like)
    hot = np.array([0, 2], "int32")
    yield Case("one_hot", (hot, two, zero), lambda i, a, b: np.eye(3, dtype="float32")[i].T * 2,
               {"depth": 3, "axis": 0, "dtype": "float32"})  # fmt: skip


def _layers() -> Iterator[Case]:
    x = real(2, 3, 4, 4)
    yield Case("nn.bias_add", (x, real(4)), np.add, {"axis": -1})
    yield Case("nn.bias_add", (x, real(3)), lambda x, b: x + b[:, None, None])
    yield Case("nn.dense", (real(2, 5, 3), real(4, 3)), lambda a, b: a @ b.T, {"units": 4})
    for ta in (False, True):
        for tb in (False, True):
            a, b = real(*((3, 2) if ta else (2, 3))), real(*((4, 3) if tb else (3, 4)))
            yield Case("nn.matmul", (a, b),
                       lambda a, b, s=ta, t=tb: (a.T if s else a) @ (b.T if t else b),
                       {"units": 4, "transpose_a": ta, "transpose_b": tb})  # fmt: skip
    yield Case("nn.batch_matmul", (real(2, 3, 4), real(1, 5, 4)),
               lambda a, b: a @ b.transpose(0, 2, 1), {"transpose_b": True})  # fmt: skip
    yield Case("nn.leaky_relu", (x,), by_torch(lambda x: F.leaky_relu(x, 0.25)))
    yield Case("nn.prelu", (x, real(3)), by_torch(F.prelu))
    for name in ("softmax", "log_softmax"):
        f = getattr(F, name)
        yield Case(f"nn.{name}", (x,), by_torch(lambda x, f=f: f(x, 1)), {"axis": 1})
        yield Case(f"nn.{name}", (x,), by_torch(lambda x, f=f: f(x, -1)))
    yield Case("nn.dropout", (x,), lambda x: [x, np.ones_like(x)])
    scale = {"scale_h": 2.0, "scale_w": 3.0}
    yield Case("nn.upsampling", (x,),
               by_torch(lambda x: F.interpolate(x, (8, 12), mode="nearest")), scale)  # fmt: skip
    yield Case("nn.upsampling", (np.ascontiguousarray(x.transpose(0, 2, 3, 1)),),
               lambda _: np.repeat(np.repeat(x, 2, 2), 3, 3).transpose(0, 2, 3, 1),
               {**scale, "layout": "NHWC"})  # fmt: skip
    yield Case("nn.upsampling", (x,),
               by_torch(lambda x: F.interpolate(x, (6, 6), mode="nearest")),
               {"scale_h": 1.5, "scale_w": 1.5})  # fmt: skip
    bilinear = {**scale, "method": "bilinear"}
    yield Case("nn.upsampling", (x,), by_torch(lambda x: F.interpolate(
        x, (8, 12), mode="bilinear", align_corners=True)),
        {**bilinear, "align_corners": True})  # fmt: skip


def _convolutions() -> Iterator[Case]:
    x, w = real(2, 4, 7, 6), real(6, 2, 3, 3)
    attrs = {"strides": [2, 1], "padding": [1, 0, 1, 0], "dilation": [1, 2], "groups": 2}
    conv = by_torch(lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 0), (1, 2), 2))
    yield Case("nn.conv2d", (x, w), conv, {**attrs, "channels": 6, "kernel_size": [3, 3]})
    back = by_torch(lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, 2))
    more = {"strides": [2, 2], "padding": [1], "output_padding": [1, 1], "groups": 2}
    yield Case("nn.conv2d_transpose", (x, real(4, 3, 3, 3)), back, more)
    grad = real(2, 6, 4, 2)
    yield Case("nn.conv2d_backward_weight", (grad, x),
               by_torch(lambda g, x: torch.nn.grad.conv2d_weight(
                   x, (6, 2, 3, 3), g, (2, 1), (1, 0), (1, 2), 2)),
               {**attrs, "kernel_size": [3, 3], "kernel_layout": "NCHW",
                "out_layout": "OIHW"})  # fmt: skip


def _norms() -> Iterator[Case]:
    x, gamma, beta, mean, var = real(2, 4, 3, 3), real(4), real(4), real(4), positive(4)

    def batch(x: np.ndarray, *p: np.ndarray) -> list[np.ndarray]:
        g, b, m, v = (torch.from_numpy(a) for a in p)
        out = F.batch_norm(torch.from_numpy(x), m, v, g, b, eps=2e-5)
        return [out.numpy(), p[2], p[3]]

    yield Case("nn.batch_norm", (x, gamma, beta, mean, var), batch, {"epsilon": 2e-5})
    yield Case("nn.batch_norm", (real(2, 4), gamma, beta, mean, var),
               lambda x, g, b, m, v: [(x - m) / np.sqrt(v + 1e-5), m, v],
               {"axis": -1, "center": False, "scale": False})  # fmt: skip
    y = real(2, 3, 4)
    yield Case("nn.layer_norm", (y, gamma, beta), by_torch(lambda x, g, b: F.layer_norm(
        x, (4,), g, b)))  # fmt: skip
    yield Case("nn.instance_norm", (x, gamma, beta), by_torch(lambda x, g, b: F.instance_norm(
        x, weight=g, bias=b)))  # fmt: skip
    yield Case("nn.group_norm", (x, gamma, beta), by_torch(lambda x, g, b: F.group_norm(
        x, 2, g, b)), {"num_groups": 2})  # fmt: skip
    yield Case("nn.lrn", (x,), by_torch(lambda x: F.local_response_norm(x, 3, 0.1, 0.75, 2.0)),
               {"size": 3, "alpha": 0.1})  # fmt: skip
    yield Case("nn.l2_normalize", (y,),
               lambda y: y / np.sqrt((y * y).sum(1, keepdims=True)),
               {"eps": 1e-9, "axis": [1]})  # fmt: skip


def _pools() -> Iterator[Case]:
    x = real(2, 3, 7, 6)
    window = {"pool_size": [3, 2], "strides": [2, 2], "padding": [1, 0, 1, 0]}
    pool = {"kernel_size": (3, 2), "stride": 2, "padding": (1, 0)}
    yield Case("nn.max_pool2d", (x,), by_torch(lambda x: F.max_pool2d(x, **pool)), window)
    yield Case("nn.max_pool2d", (x,),
               by_torch(lambda x: F.max_pool2d(x, 3, 2, 0, ceil_mode=True)),
               {"pool_size": [3], "strides": [2], "ceil_mode": 1})  # fmt: skip
    for include in (False, True):

        def avg(x: torch.Tensor, include: bool = include) -> torch.Tensor:
            return F.avg_pool2d(x, **pool, count_include_pad=include)

        attrs = {**window, "count_include_pad": include}
        yield Case("nn.avg_pool2d", (x,), by_torch(avg), attrs)
        yield Case("nn.avg_pool2d_grad", (real(2, 3, 4, 3), x), _pulled(avg), attrs)
    yield Case("nn.max_pool2d_grad", (real(2, 3, 4, 3), x),
               _pulled(lambda x: F.max_pool2d(x, **pool)), window)  # fmt: skip
    yield Case("nn.global_avg_pool2d", (x,), lambda x: x.mean((2, 3), keepdims=True))
    yield Case("nn.global_avg_pool2d", (x,), lambda x: x.mean((1, 2), keepdims=True),
               {"layout": "NHWC"})  # fmt: skip
    yield Case("nn.global_max_pool2d", (x,), by_torch(lambda x: F.adaptive_max_pool2d(x, 1)))
    for size in ((3, 2), (4, 6), (7, 3), (1, 1)):
        yield Case("nn.adaptive_avg_pool2d", (x,), by_torch(lambda x, s=size: (
            F.adaptive_avg_pool2d(x, s))), {"output_size": size})  # fmt: skip
        yield Case("nn.adaptive_max_pool2d", (x,), by_torch(lambda x, s=size: (
            F.adaptive_max_pool2d(x, s))), {"output_size": size})  # fmt: skip


def _pulled(function: Callable[..., torch.Tensor]) -> Callable[..., np.ndarray]:
    """(gradient, x) -> the gradient by x."""

    def run(grad: np.ndarray, x: np.ndarray) -> np.ndarray:
        leaf = torch.from_numpy(x).requires_grad_()
        (out,) = torch.autograd.grad(function(leaf), leaf, torch.from_numpy(grad))
        return out.numpy()

    return run


def _losses() -> Iterator[Case]:
    p, y = positive(3, 4), real(3, 4)
    yield Case("nn.cross_entropy", (p, y), lambda p, y: -(y * np.log(p)).sum() / 3)
    yield Case("nn.cross_entropy_with_logits", (p, y), lambda p, y: -(y * p).sum() / 3)
    targets, weights = np.array([1, 0, 3], "int64"), positive(4)
    for reduction in ("mean", "sum", "none"):
        yield Case("nn.nll_loss", (y, targets, weights), by_torch(lambda y, t, w, r=reduction: (
            F.nll_loss(y, t, w, reduction=r, ignore_index=0))),
            {"reduction": reduction, "ignore_index": 0}, fixed=(2,))  # fmt: skip


CASES: list[Case] = [
    case
    for family in (_elementwise, _reductions, _shapes, _selections, _layers, _convolutions, _norms,
                   _pools, _losses, image_cases.cases,
                   index_cases.cases, place_cases.cases, vision_cases.cases, box_cases.cases,
                   random_cases.cases,
                   line_cases.cases, volume_cases.cases)
    for case in family()
]  # fmt: skip
