"""Graphs that AOTAutograd makes of small modules, and their results by Relax beside PyTorch's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from relay_wgrad.frontend import GradientGraph, from_aot
from tests.support.onnx.models import call


class Scalar(nn.Module):
    """A module whose results' sum, each element by a factor of its own, is the loss."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *x: Any) -> Any:
        y = self.module(*x)
        factors = torch.sin(torch.arange(y.numel(), dtype=y.dtype) + 1).reshape(y.shape)
        return ((y * factors).sum(),)


def joint(module: nn.Module, *x: Any, dtype: torch.dtype = torch.float64) -> tuple[Any, list[Any]]:
    """(the joint graph of a module that gives a tuple of its loss, its arguments)."""
    from torch._functorch.aot_autograd import aot_export_module

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about PyTorch
        graph, _ = aot_export_module(module.to(dtype), x, trace_joint=True, output_loss_index=0)
    given = [p.detach() for p in module.parameters()]
    return graph, [*given, *module.buffers(), *x]


def ran(graph: GradientGraph, inputs: list[Any], drawn: list[Any] | None = None) -> list[Any]:
    """What the Relax function gives in the graph's place, as arrays."""
    arrays = [x.detach().numpy() if hasattr(x, "detach") else x for x in inputs]
    made = call(graph.module, "main", graph.arguments(arrays, drawn or []))
    return graph.results(arrays, [x.numpy() for x in made])


def apart(found: list[Any], wanted: Any) -> float:
    """The largest distance of a result, by its norm or a millionth of all results' norm."""
    pairs = [(f, w.detach().numpy()) for f, w in zip(found, wanted, strict=True) if w is not None]
    assert [f is None for f in found] == [w is None for w in wanted]
    assert [(f.shape, f.dtype) for f, _ in pairs] == [(w.shape, w.dtype) for _, w in pairs]
    total = np.sqrt(sum(float((np.asarray(w, "float64") ** 2).sum()) for _, w in pairs))
    return max(
        float(np.linalg.norm(f - w)) / max(float(np.linalg.norm(w)), 1e-6 * total, 1e-300)
        for f, w in pairs
        if w.dtype != bool and w.size
    )


def compared(module: nn.Module, *x: Any) -> GradientGraph:
    """The graph, which gives what PyTorch gives for it, to 1e-9."""
    graph, inputs = joint(module, *x)
    made = from_aot(graph, inputs)
    assert apart(ran(made, inputs), graph(*inputs)) < 1e-9
    return made
