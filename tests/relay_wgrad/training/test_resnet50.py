"""A whole training graph with the compiled kernels: every gradient of ResNet-50 against PyTorch.

Seeded He weights, 224×224, batch 1.  In float64 every parameter's gradient agrees to 1e-8.  In
float32 the yardstick is PyTorch's own error, the distance of its float32 gradients from its float64
ones, which is large with training-mode batch normalization: rounding is amplified layer by layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from legalize.cpu import host_target
from legalize.cpu.choose import RULES
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import TrainingGraph, from_onnx
from relay_wgrad.training.trainer import Trainer
from tests.support.problems import relative_error_of_all
from tests.support.torch.model import torch_step

pytestmark = [
    pytest.mark.usefixtures("registered"),
    pytest.mark.longer("whole networks; smaller ones stay"),
]

Arrays = list[np.ndarray[Any, Any]]


def ours(graph: TrainingGraph, batch: dict[str, Any]) -> Arrays:
    configure_threads()
    trainer = Trainer(graph, host_target())
    sources = {conv.source for conv in trainer.compiled.convolutions}
    assert sources <= {f"llvm {rule.name}" for rule in RULES}
    assert len(trainer.compiled.convolutions) == 53 + 53 + 52  # the first has no data gradient
    _, gradients = trainer.compiled.vm["main_adjoint"](*trainer.arguments(batch))
    return [np.asarray(g.numpy(), dtype="float64") for g in gradients]


def pytorch(graph: TrainingGraph, batch: dict[str, Any], bn: str) -> Arrays:
    gradients = torch_step("resnet50", graph, batch, bn)[2]
    return [g.double().numpy() for g in gradients]


@pytest.fixture(scope="module", params=["eval", "train"])
def case(request: pytest.FixtureRequest) -> tuple[str, TrainingGraph, Any, Arrays]:
    bn = request.param
    graph = from_onnx("resnet50", batch=1, dtype="float64", bn=bn)
    batch = graph.random_batch(3)
    return bn, graph, batch, pytorch(graph, batch, bn)


def test_float64(case: tuple[str, TrainingGraph, Any, Arrays]) -> None:
    bn, graph, batch, want = case
    if bn == "eval":
        pytest.skip("one compilation in float64 is enough: training mode holds eval's operators")
    for name, a, b in zip(graph.trainable, ours(graph, batch), want, strict=True):
        error = np.linalg.norm(a - b) / np.linalg.norm(b)
        assert error <= 1e-8, f"{name}: {error:.2e}"


def test_float32(case: tuple[str, TrainingGraph, Any, Arrays]) -> None:
    bn, _, _, want = case
    graph = from_onnx("resnet50", batch=1, dtype="float32", bn=bn)
    batch = graph.random_batch(3)
    got, theirs = ours(graph, batch), pytorch(graph, batch, bn)
    mine, yardstick = relative_error_of_all(got, want), relative_error_of_all(theirs, want)
    print(f"bn={bn}: ours {mine:.2e}, PyTorch's own {yardstick:.2e}")
    assert mine <= 3 * yardstick
