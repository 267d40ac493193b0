"""Gradients before and after layout conversion, compiled and run: the same numbers in float64.

`python -m benchmarks cpu step --dtypes f64 --layouts NHWC,NCHW` compares whole architectures with
PyTorch; here are small ones.  LLVM's optimizer is off, for compiling takes longer than running.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from relay_wgrad.frontend import TrainingGraph, from_onnx
from relay_wgrad.training.step import ADJOINT, step_module
from relay_wgrad.transform import ConvertLayout, converted_params, converted_results, grad
from tests.support.layout_cases import machine_of, run
from tests.support.relay.fixtures import load
from tests.support.relay.networks import NETWORKS, relay_network

pytestmark = pytest.mark.usefixtures("registered")

Arrays = dict[str, np.ndarray]
TOLERANCE = 1e-10
SINGLE = 1e-5  # of the largest value: float32, summed in another order


def worst(got: Arrays, want: Arrays) -> float:
    """The largest error of an array, in relative norm."""
    return max(float(np.linalg.norm(got[n] - v) / np.linalg.norm(v)) for n, v in want.items())


def close(got: np.ndarray, want: np.ndarray, tolerance: float = SINGLE) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


def step(module: tvm.IRModule, values: Arrays, names: list[str]) -> tuple[float, Arrays]:
    """(loss, gradients of `names`) of a compiled adjoint, given and returned in the old layout."""
    func = module[ADJOINT]
    axes, turned = converted_params(func), converted_results(func)
    args = [v.transpose(axes[n]) if n in axes else v for n, v in values.items()]
    outputs, gradients = machine_of(module)[ADJOINT](
        *[tvm.runtime.tensor(np.array(a, order="C")) for a in args]
    )
    named = {}
    for i, (name, value) in enumerate(zip(names, gradients, strict=True)):
        array = value.numpy()
        if (1, i) in turned:
            array = array.transpose(np.argsort(turned[1, i]))
        named[name] = array
    return float(outputs[0].numpy()), named


def assert_equal_in_layouts(module: tvm.IRModule, values: Arrays, names: list[str]) -> Any:
    """The step in NHWC, parameters kept or converted, is the step in NCHW; the latter's result."""
    loss, want = step(module, values, names)
    for params in ("keep", "convert"):
        converted = ConvertLayout("NHWC", functions=[ADJOINT], params=params)(module)
        assert bool(converted_params(converted[ADJOINT])) == (params == "convert")
        other, got = step(converted, values, names)
        assert other == pytest.approx(loss, rel=TOLERANCE)
        assert worst(got, want) <= TOLERANCE, params
    return loss, want


@pytest.mark.longer_cases("resnet8", why="whole networks; smaller ones stay")
@pytest.mark.parametrize("name", NETWORKS)
def test_is_relays_network(name: str) -> None:
    params, outputs, _ = load(f"{name}_fwd")
    assert {n: v.shape for n, v in params.items()} == NETWORKS[name][1]
    assert list(params) == list(NETWORKS[name][1])
    _, output = run(relay_network(name), list(params.values()))
    close(output, outputs[0])


def test_gradients_are_relays() -> None:
    # resnet8_cifar's recorded gradients are those of a softmax's sum: rounding around zero.
    params, want, _ = load("smallnet_grad")
    module = grad(relay_network("smallnet"), "main")
    _, *got = run(module, list(params.values()), ADJOINT)
    for a, b in zip(got, want, strict=True):
        close(a, b)


@pytest.mark.longer("whole networks")
@pytest.mark.parametrize("name", NETWORKS)
def test_relays_networks_in_both_layouts(name: str) -> None:
    params, _, _ = load(f"{name}_fwd")
    values = {n: v.astype("float64") for n, v in params.items()}
    # The first batch normalization has no scale, so gamma is not differentiated.
    names = [n for n in values if n != "bn_data_gamma"]
    module = grad(relay_network(name, "float64"), "main", wrt=names)
    del module["main"]
    assert_equal_in_layouts(module, values, names)


class Fire(nn.Module):
    """1×1 convolutions to few channels, then 1×1 and 3×3 side by side."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.one = nn.Conv2d(squeezed, expanded, 1)
        self.three = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.squeeze(x).relu()
        return torch.cat([self.one(x).relu(), self.three(x).relu()], 1)


def squeezenet() -> nn.Sequential:
    """SqueezeNet 1.1 as its authors describe it; its parameters are in the file's order."""
    pool = lambda: nn.MaxPool2d(3, 2)  # noqa: E731
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), pool(),
        Fire(64, 16, 64), Fire(128, 16, 64), pool(),
        Fire(128, 32, 128), Fire(256, 32, 128), pool(),
        Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
        nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def pytorch(graph: TrainingGraph, batch: Arrays) -> tuple[float, Arrays]:
    model = squeezenet().double()
    with torch.no_grad():
        for name, parameter in zip(graph.trainable, model.parameters(), strict=True):
            parameter.copy_(torch.tensor(graph.params[name]))
    image = torch.tensor(batch[graph.inputs[0].name])
    loss = nn.functional.cross_entropy(model(image), torch.tensor(batch["labels"]))
    loss.backward()
    gradients = [p.grad.numpy() for p in model.parameters()]
    return loss.item(), dict(zip(graph.trainable, gradients, strict=True))


@pytest.mark.longer("whole networks; smaller ones stay")
def test_squeezenet_in_both_layouts() -> None:
    graph = from_onnx("squeezenet", batch=2, image_size=32, dtype="float64")
    batch = graph.random_batch(1)
    loss, got = assert_equal_in_layouts(
        step_module(graph), {**batch, **graph.params}, list(graph.trainable)
    )
    want_loss, want = pytorch(graph, batch)
    assert loss == pytest.approx(want_loss, rel=TOLERANCE)
    assert worst(got, want) <= TOLERANCE
