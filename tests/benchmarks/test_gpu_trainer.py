"""The benchmark of a trainer's steps, on the CPU."""

from __future__ import annotations

from benchmarks.gpu_trainer import measure
from relay_wgrad.frontend import from_onnx
from tests.support.training_models import residual_net


def test_figures(registered: None) -> None:
    network = from_onnx(residual_net(blocks=0, size=6), batch=2)
    found = measure(network, "f32", True, device="cpu", steps=4, optimizer="sgd")
    assert not found["graph"]
    assert 0 < found["gives_ms"] <= found["ms"]
    assert found["last_loss"] < found["first_loss"]
    assert found["memory_gib"] is None
