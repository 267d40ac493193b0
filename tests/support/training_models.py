"""Small networks for tests of training, and any of the bundled ones run by PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as fn
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from relay_wgrad.frontend import TrainingGraph, from_onnx, from_torch
from relay_wgrad.frontend.onnx.model_source import load


def residual_net(
    blocks: int = 3, channels: int = 8, size: int = 12, dropout: float = 0.0, norm: bool = True
) -> onnx.ModelProto:
    """conv, pool, `blocks` of two 3×3 convolutions with batch norm and a sum, classifier."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}

    def weight(name: str, *shape: int) -> str:
        weights[name] = rng.standard_normal(shape).astype("float32")
        return name

    def conv(name: str, x: str, cin: int, relu: bool = True) -> str:
        w = weight(f"{name}_w", channels, cin, 3, 3)
        bias = [] if norm else [weight(f"{name}_b", channels)]
        nodes.append(helper.make_node("Conv", [x, w, *bias], [f"{name}_c"], pads=[1] * 4))
        last = f"{name}_c"
        if norm:
            stats = [weight(f"{name}_{s}", channels) for s in ("scale", "shift", "mean", "var")]
            weights[f"{name}_var"] = weights[f"{name}_var"] ** 2 + 1
            nodes.append(
                helper.make_node("BatchNormalization", [last, *stats], [f"{name}_n"], momentum=0.8)
            )
            last = f"{name}_n"
        if relu:
            nodes.append(helper.make_node("Relu", [last], [f"{name}_r"]))
            last = f"{name}_r"
        return last

    x = conv("stem", "x", 3)
    nodes.append(helper.make_node("MaxPool", [x], ["pool"], kernel_shape=[2, 2], strides=[2, 2]))
    x = "pool"
    for i in range(blocks):
        branch = conv(f"b{i}2", conv(f"b{i}1", x, channels), channels, relu=False)
        nodes.append(helper.make_node("Sum", [branch, x], [f"b{i}_sum"]))
        nodes.append(helper.make_node("Relu", [f"b{i}_sum"], [f"block{i}"]))
        x = f"block{i}"
    if dropout:
        nodes.append(helper.make_node("Dropout", [x], ["dropped"], ratio=dropout))
        x = "dropped"
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["mean"]))
    nodes.append(helper.make_node("Flatten", ["mean"], ["flat"]))
    fc = [weight("fc_w", 5, channels), weight("fc_b", 5)]
    nodes.append(helper.make_node("Gemm", ["flat", *fc], ["y"], transB=1))
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 3, size, size))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 5))],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    # Opset 9: Dropout's ratio is an attribute there.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)])


def inverted_net() -> nn.Sequential:
    """Depthwise convolutions, ReLU6, SiLU, a layer of sizes that are no multiples of 8."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), nn.SiLU(),
        nn.Conv2d(32, 50, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(50, 11),
    )  # fmt: skip


class AttentionNet(nn.Module):
    """A block of a transformer: layers on tokens, and a product for each image and head."""

    shape = (49, 64)

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64) for _ in range(4))
        self.up, self.down, self.last = nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        """(N, 10) of tokens (N, 49, 64)."""
        y, heads = self.norm(x), (x.shape[0], 49, 4, 16)
        q, k, v = (f(y).reshape(heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(2, 3) * 0.25, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        x = x + self.down(fn.gelu(self.up(x)))
        return self.last(x.mean(1))


def graph(model: Any, batch: int) -> TrainingGraph:
    """The training graph of an ONNX model or a bundled one's name, or of a module of this file."""
    if not isinstance(model, nn.Module):
        return from_onnx(model, batch=batch)
    return from_torch(model, (torch.zeros(batch, *getattr(model, "shape", (3, 32, 32))),))


def torch_run(
    model: Any, graph: TrainingGraph, batch: dict[str, np.ndarray], bn: str = "train"
) -> tuple[Any, list[Any], dict[str, Any]]:
    """(loss, gradients by `graph.trainable`, new statistics by file name), run by PyTorch's ops.

    Statistics come from `torch.nn.BatchNorm2d`'s own rule; masks are the batch's.
    """
    proto = load(model)[1]
    params = {
        n: torch.tensor(v, requires_grad=n in graph.trainable) for n, v in graph.params.items()
    }
    env: dict[str, Any] = {file: params[n] for n, file in graph.onnx_names.items()}
    masks = [torch.tensor(batch[s.name]) for s in graph.inputs if s.kind == "mask"]
    fixed = {t.name for t in proto.graph.initializer} | set(env)
    (data,) = (i.name for i in proto.graph.input if i.name not in fixed)
    env[data] = torch.tensor(batch[graph.inputs[0].name])
    statistics: dict[str, Any] = {}
    last: Any = None
    for item in proto.graph.node:
        attr = {a.name: helper.get_attribute_value(a) for a in item.attribute}
        op = item.op_type
        args = [env[i] for i in item.input if i in env]
        pads = attr.get("pads", [0] * 4)
        around = (pads[1], pads[3], pads[0], pads[2])
        strides = attr.get("strides", [1, 1])
        if op in ("ConstantOfShape", "Constant"):
            continue
        if op == "Conv":
            y = fn.conv2d(
                fn.pad(args[0], around), *args[1:], stride=strides, groups=attr.get("group", 1)
            )
        elif op == "BatchNormalization":
            x, gamma, beta, mean, var = args
            running = [mean.clone(), var.clone()]
            momentum = attr.get("momentum", 0.9)
            y = fn.batch_norm(
                x, *running, gamma, beta, bn == "train", 1 - momentum, attr.get("epsilon", 1e-5)
            )
            statistics[item.input[3]], statistics[item.input[4]] = running
            if bn == "train":
                # PyTorch's running variance takes the sample variance, ONNX's the population's.
                count = x.numel() // x.shape[1]
                fresh = (running[1] - momentum * var) * (count - 1) / count
                statistics[item.input[4]] = momentum * var + fresh
        elif op == "Relu":
            y = fn.relu(args[0])
        elif op == "LRN":
            y = fn.local_response_norm(
                args[0], attr["size"], attr["alpha"], attr["beta"], attr["bias"]
            )
        elif op == "MaxPool":
            padded = fn.pad(args[0], around, value=-torch.inf)
            y = fn.max_pool2d(padded, attr["kernel_shape"], strides)
        elif op == "AveragePool":
            assert pads[0] == pads[2]
            assert pads[1] == pads[3]
            y = fn.avg_pool2d(
                args[0], attr["kernel_shape"], strides, (pads[0], pads[1]),
                count_include_pad=bool(attr.get("count_include_pad", 0)),
            )  # fmt: skip
        elif op == "GlobalAveragePool":
            y = args[0].mean((2, 3), keepdim=True)
        elif op == "Sum":
            y = sum(args[1:], args[0])
        elif op == "Concat":
            y = torch.cat(args, attr["axis"])
        elif op == "Transpose":
            y = args[0].permute(attr["perm"])
        elif op == "Dropout":
            y = args[0] * masks.pop(0) if masks else args[0]
        elif op == "Flatten":
            y = args[0].flatten(1)
        elif op == "Reshape":
            shape = next(
                numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == item.input[1]
            )
            y = args[0].reshape(args[0].shape[0], *[int(s) for s in shape[1:]])
        elif op == "Gemm":
            y = args[0] @ (args[1].T if attr.get("transB") else args[1]) + args[2]
        else:
            assert op == "Softmax", op
            break
        env[item.output[0]] = last = y
    loss = fn.cross_entropy(last.flatten(1), torch.tensor(batch["labels"]))
    gradients = torch.autograd.grad(loss, [params[n] for n in graph.trainable])
    return loss, list(gradients), statistics
