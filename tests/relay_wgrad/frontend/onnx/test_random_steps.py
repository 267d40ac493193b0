"""Random layers of ONNX, any rank, groups, dilation, lopsided padding: exported steps and read
training graphs by ONNX's evaluator, against PyTorch's autograd in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as fn
from onnx import TensorProto, helper, numpy_helper

from relay_wgrad.frontend import (
    from_onnx,
    from_onnx_training,
    function_to_onnx,
    gradient_to_onnx,
)
from tests.support.onnx.evaluator import evaluate
from tests.support.onnx.models import F64
from tests.support.problems import relative_error

pytestmark = pytest.mark.usefixtures("registered")

MS = "com.microsoft"
Layer = tuple[dict[str, Any], dict[str, np.ndarray]]  # attributes, x and the weights


def axis(rng: np.random.Generator, is_pool: bool) -> list[int]:
    """(size, kernel, stride, dilation, padding before, after)"""
    kernel, stride = int(rng.choice([1, 2, 3, 3, 5])), int(rng.choice([1, 1, 2, 3]))
    dilation = 1 if is_pool else int(rng.choice([1, 1, 2, 3]))
    reach = (kernel - 1) * dilation
    before, after = map(int, rng.integers(0, kernel if is_pool else reach + 2, 2))
    return [max(1, reach + 1 - before - after) + int(rng.integers(0, 7)), kernel, stride, dilation,
            before, after]  # fmt: skip


def drawn(rng: np.random.Generator, kind: str) -> Layer:
    rank = int(rng.integers(1, 4))
    axes = [axis(rng, "Pool" in kind) for _ in range(rank)]
    size, taps, strides, dilation, before, after = map(list, zip(*axes, strict=True))
    at: dict[str, Any] = {"kernel_shape": taps, "strides": strides, "pads": before + after}
    groups, held = int(rng.integers(1, 4)), {}
    if "Pool" in kind:
        at["ceil_mode"] = int(rng.integers(2))
        if kind == "AveragePool":
            at["count_include_pad"] = int(rng.integers(2))
    else:
        at |= {"dilations": dilation, "group": groups}
        c, k = (groups * int(rng.integers(1, 3)) for _ in range(2))
        shape = (k, c // groups) if kind == "Conv" else (c, k // groups)
        held = {"w": rng.standard_normal((*shape, *taps)), "b": rng.standard_normal(k)}
        if kind == "ConvTranspose":
            at["output_padding"] = [int(rng.integers(s)) for s in strides]
            size = [s + p for s, p in zip(size, before, strict=True)]  # or nothing may be left
    channels = groups if not held else (held["w"].shape[1] * groups if kind == "Conv" else c)
    return at, {"x": rng.standard_normal((int(rng.integers(1, 3)), channels, *size)), **held}


def flat(before: list[int], after: list[int]) -> list[int]:
    """As `torch.nn.functional.pad` takes it: the last axis first."""
    return [v for pair in reversed(list(zip(before, after, strict=True))) for v in pair]


def by_torch(kind: str, at: dict[str, Any], t: dict[str, torch.Tensor]) -> torch.Tensor:
    x, strides, taps, rank = t["x"], at["strides"], at["kernel_shape"], len(at["strides"])
    before, after = at["pads"][:rank], at["pads"][rank:]
    if kind == "Conv":
        conv = getattr(fn, f"conv{rank}d")
        padded = fn.pad(x, flat(before, after))
        return conv(padded, t["w"], t["b"], strides, 0, at["dilations"], at["group"])
    if kind == "ConvTranspose":
        conv = getattr(fn, f"conv_transpose{rank}d")
        y = conv(x, t["w"], None, strides, 0, 0, at["group"], at["dilations"])
        ends = [e - a for e, a in zip(at["output_padding"], after, strict=True)]
        return fn.pad(y, flat([-b for b in before], ends)) + t["b"].reshape(1, -1, *[1] * rank)
    size, more, outs = x.shape[2:], [], []
    for h, k, s, b, a in zip(size, taps, strides, before, after, strict=True):
        rest = h + b + a - k
        out = (-(-rest // s) if at["ceil_mode"] else rest // s) + 1
        out -= at["ceil_mode"] and (out - 1) * s >= h + b
        outs.append(out)
        more.append(max((out - 1) * s + k - h - b - a, 0))

    def windows(value: torch.Tensor, fill: float) -> torch.Tensor:
        value = fn.pad(value, flat([0] * rank, more), value=fill)
        for i in range(rank):
            value = value.unfold(2 + i, taps[i], strides[i]).narrow(2 + i, 0, outs[i])
        return value.flatten(2 + rank)

    around = flat(before, after)
    if kind == "MaxPool":
        return windows(fn.pad(x, around, value=-np.inf), -np.inf).max(-1).values
    counts = fn.pad(torch.ones_like(x), around, value=float(at["count_include_pad"]))
    return windows(fn.pad(x, around), 0).sum(-1) / windows(counts, 0).sum(-1)


def model_of(nodes: Any, inputs: Any, outputs: Any, held: Any, opset: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "one",
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets)


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
def test_random_layers(kind: str) -> None:
    for seed in range(12):
        rng = np.random.default_rng([seed, len(kind)])
        at, arrays = drawn(rng, kind)
        opset = int(rng.choice([11, 13, 17, 20, 21]))
        t = {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items()}
        y = by_torch(kind, at, t)
        if not torch.isfinite(y).all():
            continue  # a window of padding alone
        exported(kind, at, arrays, t, y, opset)
        refused = at.get("ceil_mode") and at.get("count_include_pad")
        if kind == "Conv" or ("Pool" in kind and y.dim() == 4 and not refused):
            read(kind, at, arrays, t, y, opset)


def exported(kind: str, at: Any, arrays: Any, t: Any, y: torch.Tensor, opset: int) -> None:
    """The step of a mean square."""
    held = {n: a for n, a in arrays.items() if n != "x"}
    node = helper.make_node(kind, list(arrays), ["y"], **at)
    model = model_of([node], {"x": arrays["x"]}, ["y"], held, opset)
    graph = from_onnx(model, loss="mse", dtype=F64, weights="initial")
    batch = graph.random_batch(1) | {"x": arrays["x"]}
    got = evaluate(gradient_to_onnx(graph, wrt=["x", *graph.trainable]), batch)
    loss = (y - torch.tensor(batch["target"])).square().mean()
    names = {file: name for name, file in graph.onnx_names.items()}
    wanted = torch.autograd.grad(loss, list(t.values()), retain_graph=True)
    assert relative_error(got["logits"], y.detach().numpy()) < 1e-12, (at, opset)
    for name, want in zip(t, wanted, strict=True):
        have = got[f"{names.get(name, name)}_grad"]
        assert relative_error(have, want.numpy()) < 1e-11, (name, at, opset)


def read(kind: str, at: Any, arrays: Any, t: Any, y: torch.Tensor, opset: int) -> None:
    """The same layer's gradient as ONNX Runtime's operators."""
    dy = np.random.default_rng(1).standard_normal(y.shape)
    values = {"dy": dy, **{n: a for n, a in arrays.items() if n != "b"}}
    outputs = [f"{n}_grad" for n in arrays]
    if kind == "Conv":
        nodes = [helper.make_node("ConvGrad", list(values), outputs, domain=MS, **at)]
    else:
        results = ["y", "places"][: 2 if kind == "MaxPool" else 1]
        operands = ["dy", *results[1:]]
        nodes = [helper.make_node(kind, ["x"], results, **at),
                 helper.make_node(f"{kind}Grad", operands, outputs, domain=MS, **at)]  # fmt: skip
    graph = from_onnx_training(model_of(nodes, values, outputs, {}, opset), dtype=F64)
    got = evaluate(function_to_onnx(graph.module, outputs=outputs), values)
    wanted = torch.autograd.grad(y, list(t.values()), torch.tensor(dy))
    for name, want in zip(outputs, wanted, strict=True):
        assert relative_error(got[name], want.numpy()) < 1e-11, (name, at, opset)
