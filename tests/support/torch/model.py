"""An ONNX network's training step run by PyTorch: shares no code with the package's importer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn

from relay_wgrad.frontend import TrainingGraph

from .onnx_module import OnnxNetwork

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
    network = OnnxNetwork(name, given)
    given[network.data] = tensor(batch[graph.inputs[0].name])
    labels = torch.tensor(batch["labels"], device=device)

    def step(scale: float = 1.0) -> Any:
        statistics: dict[str, Any] | None = {} if follow_statistics else None

        def norm(names: list[str], args: list[Any], epsilon: float) -> Any:
            x, gamma, beta, mean, var = args
            if bn == "train" and statistics is not None:
                for index, value in (
                    (3, x.mean((0, 2, 3))),
                    (4, x.var((0, 2, 3), unbiased=False)),
                ):
                    statistics[names[index]] = 0.9 * args[index] + 0.1 * value
                mean = var = None
            rate = 0.1 if statistics is None else 0.0  # of PyTorch's own update, in place
            return fn.batch_norm(x, mean, var, gamma, beta, bn == "train", rate, epsilon)

        logits = network.logits(given, norm)
        loss = fn.cross_entropy(logits, labels)
        scaled = torch.autograd.grad(loss * scale, [params[n] for n in graph.trainable])
        gradients = [g / scale for g in scaled] if scale != 1.0 else scaled
        return loss, logits, gradients, statistics

    return step
