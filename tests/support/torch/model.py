"""An ONNX network's training step run by PyTorch: shares no code with the package's importer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn
from onnx import helper

from relay_wgrad.frontend import TrainingGraph
from relay_wgrad.frontend.onnx.bundled import load

Step = Callable[..., Any]


def torch_step(
    name: str, graph: TrainingGraph, batch: dict[str, np.ndarray], bn: str, **options: Any
) -> Any:
    """(loss, logits, gradients, statistics) of the file's nodes, run by PyTorch once."""
    return prepared(name, graph, batch, bn, **options)()


def prepared(
    name: str,
    graph: TrainingGraph,
    batch: dict[str, np.ndarray],
    bn: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
    follow_statistics: bool = True,
) -> Step:
    """`torch_step` to be called many times: parameters and data are on the device already.

    `dtype` replaces that of parameters and data.  Without `follow_statistics` PyTorch updates the
    running statistics in place, as a training loop would, and returns none.  The step's
    argument multiplies the loss before
    differentiation; the gradients are divided by it after.
    """

    def tensor(value: np.ndarray) -> torch.Tensor:
        made = torch.tensor(value, device=device, dtype=dtype)
        last = channels_last and made.ndim == 4
        return made.contiguous(memory_format=torch.channels_last) if last else made

    params = {n: tensor(v) for n, v in graph.params.items()}
    for n in graph.trainable:
        params[n].requires_grad_()
    given: dict[str, Any] = {file: params[n] for n, file in graph.onnx_names.items()}
    proto = load(name)[1]
    fixed = {t.name for t in proto.graph.initializer} | set(given)
    (data,) = (i.name for i in proto.graph.input if i.name not in fixed)
    given[data] = tensor(batch[graph.inputs[0].name])
    labels = torch.tensor(batch["labels"], device=device)
    nodes = [
        (item, {a.name: helper.get_attribute_value(a) for a in item.attribute})
        for item in proto.graph.node
    ]

    def step(scale: float = 1.0) -> Any:
        env = dict(given)
        statistics: dict[str, Any] | None = {} if follow_statistics else None
        last: Any = None
        for item, attr in nodes:
            op, args = item.op_type, [env[i] for i in item.input if i in env]
            pads = attr.get("pads", [0] * 4)
            around = (pads[1], pads[3], pads[0], pads[2])
            if op == "ConstantOfShape":
                continue
            if op == "Conv":
                even = pads[:2] == pads[2:]
                y = fn.conv2d(
                    args[0] if even else fn.pad(args[0], around),
                    *args[1:],
                    stride=attr["strides"],
                    padding=tuple(pads[:2]) if even else 0,
                    groups=attr.get("group", 1),
                )
            elif op == "BatchNormalization":
                x, gamma, beta, mean, var = args
                if bn == "train" and statistics is not None:
                    for index, value in (
                        (3, x.mean((0, 2, 3))),
                        (4, x.var((0, 2, 3), unbiased=False)),
                    ):
                        statistics[item.input[index]] = 0.9 * args[index] + 0.1 * value
                    mean = var = None
                rate = 0.1 if statistics is None else 0.0  # of PyTorch's own update, in place
                y = fn.batch_norm(x, mean, var, gamma, beta, bn == "train", rate, attr["epsilon"])
            elif op == "Relu":
                y = fn.relu(args[0])
            elif op == "MaxPool":
                padded = fn.pad(args[0], around, value=-np.inf)
                y = fn.max_pool2d(padded, attr["kernel_shape"], attr["strides"])
            elif op in ("GlobalAveragePool", "AveragePool"):
                y = args[0].mean((2, 3), keepdim=True)
            elif op == "Sum":
                y = args[0] + args[1]
            elif op == "Concat":
                y = torch.cat(args, 1)
            elif op == "Dropout":
                y = args[0]
            elif op == "Reshape":
                y = args[0].flatten(1)
            elif op == "Gemm":
                y = args[0] @ args[1].T + args[2]
            else:
                assert op == "Softmax"
                break
            env[item.output[0]] = last = y
        logits = last.flatten(1)
        loss = fn.cross_entropy(logits, labels)
        scaled = torch.autograd.grad(loss * scale, [params[n] for n in graph.trainable])
        gradients = [g / scale for g in scaled] if scale != 1.0 else scaled
        return loss, logits, gradients, statistics

    return step
