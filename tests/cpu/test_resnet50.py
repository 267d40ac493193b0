"""A whole training graph with the compiled kernels: every gradient of ResNet-50 against PyTorch.

Seeded He weights, 224×224, batch 1, batch normalization in training mode.  In float64 every
parameter's gradient agrees to 1e-8.  In float32 the yardstick is PyTorch's own error, the distance
of its float32 gradients from its float64 ones, which is large: rounding is amplified layer by
layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from legalize.cpu import configure_threads, host_target
from relay_wgrad.frontend import TrainingGraph, from_onnx
from relay_wgrad.training import Trainer
from tests.torch_model import torch_step

pytestmark = [pytest.mark.usefixtures("registered"), pytest.mark.slow]

Arrays = list[np.ndarray[Any, Any]]


def ours(graph: TrainingGraph, batch: dict[str, Any]) -> Arrays:
    configure_threads()
    trainer = Trainer(graph, host_target())
    sources = {conv.source for conv in trainer.compiled.convolutions}
    assert sources == {"llvm direct"}
    assert len(trainer.compiled.convolutions) == 53 + 53 + 52  # the first has no data gradient
    _, gradients = trainer.compiled.vm["main_adjoint"](*trainer.arguments(batch))
    return [np.asarray(g.numpy(), dtype="float64") for g in gradients]


def pytorch(graph: TrainingGraph, batch: dict[str, Any]) -> Arrays:
    gradients = torch_step("resnet50", graph, batch, "train")[2]
    return [g.double().numpy() for g in gradients]


def distance(got: Arrays, want: Arrays) -> float:
    """Over all parameters together: ||got - want|| / ||want||."""
    squares = [(np.sum((a - b) ** 2), np.sum(b**2)) for a, b in zip(got, want, strict=True)]
    return float(np.sqrt(sum(s for s, _ in squares) / sum(s for _, s in squares)))


@pytest.fixture(scope="module")
def exact() -> tuple[TrainingGraph, Any, Arrays]:
    """The graph in float64, a batch, and PyTorch's gradients."""
    graph = from_onnx("resnet50", batch=1, dtype="float64", bn="train")
    batch = graph.random_batch(3)
    return graph, batch, pytorch(graph, batch)


def test_float64(exact: tuple[TrainingGraph, Any, Arrays]) -> None:
    graph, batch, want = exact
    for name, a, b in zip(graph.trainable, ours(graph, batch), want, strict=True):
        error = np.linalg.norm(a - b) / np.linalg.norm(b)
        assert error <= 1e-8, f"{name}: {error:.2e}"


def test_float32(exact: tuple[TrainingGraph, Any, Arrays]) -> None:
    want = exact[2]
    graph = from_onnx("resnet50", batch=1, dtype="float32", bn="train")
    batch = graph.random_batch(3)
    got, theirs = ours(graph, batch), pytorch(graph, batch)
    mine, yardstick = distance(got, want), distance(theirs, want)
    print(f"ours {mine:.2e}, PyTorch's own {yardstick:.2e}")
    assert mine <= 3 * yardstick
