"""An ONNX network's training step run by PyTorch: shares no code with the package's importer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn
from onnx import helper

from relay_wgrad.frontend import TrainingGraph
from relay_wgrad.frontend.bundled import load


def torch_step(name: str, graph: TrainingGraph, batch: dict[str, np.ndarray], bn: str) -> Any:
    """(loss, logits, gradients, statistics) of the file's nodes, run by PyTorch."""
    params = {
        n: torch.tensor(v, requires_grad=n in graph.trainable) for n, v in graph.params.items()
    }
    env: dict[str, Any] = {file: params[n] for n, file in graph.onnx_names.items()}
    proto = load(name)[1]
    fixed = {t.name for t in proto.graph.initializer} | set(env)
    (data,) = (i.name for i in proto.graph.input if i.name not in fixed)
    env[data] = torch.tensor(batch[graph.inputs[0].name])
    statistics, last = {}, None
    for item in proto.graph.node:
        attr = {a.name: helper.get_attribute_value(a) for a in item.attribute}
        op, args = item.op_type, [env[i] for i in item.input if i in env]
        pads = attr.get("pads", [0] * 4)
        around = (pads[1], pads[3], pads[0], pads[2])
        if op == "ConstantOfShape":
            continue
        if op == "Conv":
            y = fn.conv2d(
                fn.pad(args[0], around),
                *args[1:],
                stride=attr["strides"],
                groups=attr.get("group", 1),
            )
        elif op == "BatchNormalization":
            x, gamma, beta, mean, var = args
            if bn == "train":
                for index, value in ((3, x.mean((0, 2, 3))), (4, x.var((0, 2, 3), unbiased=False))):
                    statistics[item.input[index]] = 0.9 * args[index] + 0.1 * value
                mean = var = None
            y = fn.batch_norm(x, mean, var, gamma, beta, bn == "train", 0, attr["epsilon"])
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
    loss = fn.cross_entropy(logits, torch.tensor(batch["labels"]))
    gradients = torch.autograd.grad(loss, [params[n] for n in graph.trainable])
    return loss, logits, gradients, statistics
