"""Gradients of whole networks with grouped convolutions, LRN and large classifiers, in float64.

ResNet-50 has a test of its own (`test_resnet50`); here are the kinds it lacks.
"""

from __future__ import annotations

import numpy as np
import pytest

from legalize.cpu import host_target
from legalize.cpu.choose import RULES
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import from_onnx
from relay_wgrad.training.trainer import Trainer
from tests.support.training_models import torch_run

pytestmark = [
    pytest.mark.usefixtures("registered"),
    pytest.mark.longer("whole networks; smaller ones stay"),
]


@pytest.mark.parametrize("name", ["alexnet", "shufflenet"])
def test_gradients_are_pytorchs(name: str) -> None:
    graph = from_onnx(name, batch=1, dtype="float64")
    batch = graph.random_batch(2)
    configure_threads()
    run = Trainer(graph, host_target())
    # Every convolution, grouped ones too, has a kernel of its own.
    names = {f"llvm {rule.name}" for rule in RULES}
    assert {c.source for c in run.compiled.convolutions} <= names
    outputs, got = run.gradients(batch)
    loss, want, _ = torch_run(name, graph, batch)
    assert float(outputs[0].numpy()) == pytest.approx(loss.item(), rel=1e-10)
    whole = np.sqrt(sum(float((g**2).sum()) for g in want))
    for parameter, a, b in zip(graph.trainable, got, want, strict=True):
        expected = b.numpy()
        # A bias before batch normalization has no effect: its gradient is rounding, here and there.
        error = np.linalg.norm(a.numpy() - expected)
        assert error < 1e-7 * np.linalg.norm(expected) + 1e-12 * whole, parameter
