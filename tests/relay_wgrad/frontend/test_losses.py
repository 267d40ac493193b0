"""Losses at a network's end beside PyTorch's: values, gradients, what is ignored or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from torch import nn
from torch.nn import functional as fn

from relay_wgrad.frontend import (
    L1,
    LOSSES,
    BCEWithLogits,
    CrossEntropy,
    Huber,
    Loss,
    SmoothL1,
    from_onnx,
    from_torch,
)
from relay_wgrad.frontend.loss import loss_of
from relay_wgrad.training.data import Data
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import layout_changes
from tests.support.onnx.models import call, node, relative, tiny

pytestmark = pytest.mark.usefixtures("registered")

WEIGHT = [0.5, 2.0, 1.0, 0.0, 3.0]
Reference = Callable[[Any, Any], Any]


class Pixels(nn.Module):
    """Five channels of each pixel."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 5, 1)
        self.pooled = pooled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return y.mean((2, 3)) if self.pooled else y


X = torch.randn(4, 3, 3, 2, generator=torch.Generator().manual_seed(1))
CASES: dict[str, tuple[Loss | str, bool, Reference]] = {
    "smoothing": (
        CrossEntropy(label_smoothing=0.1), True,
        lambda y, t: fn.cross_entropy(y, t, label_smoothing=0.1),
    ),
    "pixels": (
        "cross_entropy(ignore_index=255)", False,
        lambda y, t: fn.cross_entropy(y, t, ignore_index=255),
    ),
    "all of it": (
        CrossEntropy(label_smoothing=0.3, ignore_index=255, weight=WEIGHT), False,
        lambda y, t: fn.cross_entropy(
            y, t, torch.tensor(WEIGHT, dtype=y.dtype), ignore_index=255, label_smoothing=0.3
        ),
    ),
    "a sum": (
        CrossEntropy(reduction="sum"), True, lambda y, t: fn.cross_entropy(y, t, reduction="sum")
    ),
    "probabilities": (
        CrossEntropy(probabilities=True, label_smoothing=0.1), True,
        lambda y, t: fn.cross_entropy(y, t, label_smoothing=0.1),
    ),
    "bce": (
        BCEWithLogits(pos_weight=WEIGHT), False,
        lambda y, t: fn.binary_cross_entropy_with_logits(
            y, t, pos_weight=torch.tensor(WEIGHT, dtype=y.dtype)[:, None, None]
        ),
    ),
    "huber": (Huber(delta=0.4), True, lambda y, t: fn.huber_loss(y, t, delta=0.4)),
    "smooth l1": (SmoothL1(beta=0.4), True, lambda y, t: fn.smooth_l1_loss(y, t, beta=0.4)),
    "l1": (L1(reduction="sum"), True, lambda y, t: fn.l1_loss(y, t, reduction="sum")),
}  # fmt: skip


def batch_of(graph: Any) -> dict[str, Any]:
    """A random one; where a label may be ignored, some are, and one whole image."""
    batch = graph.random_batch(2)
    (spec,) = (s for s in graph.inputs if s.kind in ("labels", "target"))
    if spec.ignored is not None:
        batch["labels"][:, ::2] = spec.ignored
        batch["labels"][-1:] = spec.ignored if len(batch["labels"]) > 1 else 0
    return dict(batch)


@pytest.mark.longer_cases("smoothing", "a sum", "huber", "smooth l1", "l1")
@pytest.mark.parametrize(("loss", "pooled", "reference"), CASES.values(), ids=CASES)
def test_value_and_gradient(loss: Loss | str, pooled: bool, reference: Reference) -> None:
    """In float64, and with half-precision convolutions in a loss of float32."""
    module = Pixels(pooled).double()
    graph = from_torch(module, (X.double(),), loss=loss)
    batch = batch_of(graph)
    outputs, gradients = call(step_module(graph), ADJOINT, graph.arguments(batch))
    target = torch.tensor(batch.get("labels", batch.get("target")))
    want = reference(module(torch.tensor(batch["x"])), target)
    assert relative(outputs[0], want.detach().numpy()) < 1e-12
    named = dict(module.named_parameters())
    for name, got in zip(graph.trainable, gradients, strict=True):
        (expected,) = torch.autograd.grad(want, named[graph.onnx_names[name]], retain_graph=True)
        assert relative(got, expected.numpy()) < 1e-12, name


def test_mixed_precision_sums_in_float32() -> None:
    """70,000 pixels are more than float16 counts; channels that are last change no layout."""
    module = Pixels(pooled=False)
    x = torch.randn(1, 3, 280, 250, generator=torch.Generator().manual_seed(1))
    graph = from_torch(module, (x,), loss=CrossEntropy(ignore_index=255, label_smoothing=0.1))
    batch = batch_of(graph)
    batch["labels"][:] = np.arange(70_000).reshape(1, 280, 250) % 5
    batch["labels"][0, 0, 0] = 255
    step = converted(step_module(graph, dtype="float16"), "NHWC")
    assert [c.reason for c in layout_changes(step[ADJOINT]) if c.reason == "between"] == []
    outputs, _ = call(step, ADJOINT, graph.arguments(batch))
    labels = torch.tensor(batch["labels"])
    y = module.double()(torch.tensor(batch["x"]).double())
    want = fn.cross_entropy(y, labels, ignore_index=255, label_smoothing=0.1)
    assert relative(outputs[0], want.detach().numpy()) < 1e-4


def test_what_is_ignored_and_what_is_wrong() -> None:
    """All ignored is NaN, as PyTorch's; a wrong label is an error, and NaN in a program alone."""
    graph = from_torch(Pixels(pooled=True), (X,), loss=CrossEntropy(ignore_index=-100))
    step = step_module(graph)
    batch = graph.random_batch(0)
    batch["labels"][:] = -100
    outputs, gradients = call(step, ADJOINT, graph.arguments(batch))
    assert np.isnan(outputs[0].numpy())
    right = graph.arguments(graph.random_batch(0))
    for label in (5, 10**9, -1):
        batch["labels"][:] = [0, label, -100, 1]
        with pytest.raises(
            ValueError, match=rf"labels must be 0 … 4, or -100 to be ignored, got {label} at ind"
        ):
            graph.batch_values(batch)
        outputs, gradients = call(step, ADJOINT, [right[0], batch["labels"], *right[2:]])
        assert np.isnan(outputs[0].numpy())
        assert all(np.isfinite(g.numpy()).all() for g in gradients)
    samples = {"x": np.zeros((4, 3, 3, 2)), "labels": np.array([1, -100, 2, 7])}
    with pytest.raises(ValueError, match=r"or -100 to be ignored, got 7 at index 3"):
        Data(graph, samples)
    samples["labels"][3] = 4
    assert Data(graph, samples).batches == 1


def test_softmax_over_pixels_classes() -> None:
    """A final Softmax of the channels is the loss's; one over a row of pixels is the network's."""
    for axis, kept in ((1, 0), (-1, 1), (-3, 0)):
        first = helper.make_node("Relu", ["x"], ["h"])
        last = helper.make_node("Softmax", ["h"], ["y"], axis=axis)
        model = tiny([first, last], (2, 3, 4, 5), opset=17)
        text = from_onnx(model).module.script()
        assert text.count("nn.softmax") == kept, axis
    graph = from_onnx(tiny([node("Relu")], (2, 3, 4, 5)))
    assert graph.batch_text().endswith("labels int64[2, 4, 5]")


REFUSED: dict[str, tuple[str, str]] = {
    "no name": ("l2", "loss='l2': expected cross_entropy, bce_with_logits, mse, l1, smooth_l1, hu"),
    "no text": ("mse + l1", "loss='mse + l1': expected"),
    "not literal": ("huber(delta=exit())", "expected"),
    "no option": ("mse(delta=1)", "mse: 'delta' is none of its options, reduction"),
    "reduction": ("mse(reduction='none')", "mse: reduction must be mean or sum, got 'none'"),
    "delta": ("huber(delta=-1)", "huber: delta must be a positive number, got -1"),
    "beta": ("smooth_l1(beta='x')", "smooth_l1: beta must be a number from 0 on, got 'x'"),
    "smoothing": ("cross_entropy(label_smoothing=1.5)", "label_smoothing must be from 0 to 1, got"),
    "index": ("cross_entropy(ignore_index=1.5)", "ignore_index must be an integer, got 1.5"),
    "both": (
        "cross_entropy(ignore_index=1, probabilities=True)", "left out with probabilities, got 1"
    ),
    "weight": ("cross_entropy(weight=[1, -1])", "weight must be a number from 0 on for each class"),
    "of nan": ("bce_with_logits(pos_weight=[])", "pos_weight must be numbers from 0 on, got []"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        loss_of(text, "own")


def test_refused_of_a_network() -> None:
    module = Pixels(pooled=True)
    for loss, message in (
        (CrossEntropy(weight=[1, 2]), "a number for each of the 5 classes of 'output 0', got 2"),
        (BCEWithLogits(pos_weight=[1, 2]), "one number or one for each channel of [4, 5], got"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            from_torch(module, (X,), loss=loss)
    with pytest.raises(TypeError, match="loss must be a name or a loss, got int"):
        from_torch(module, (X,), loss=3)  # type: ignore[arg-type]


def test_text_comes_back() -> None:
    for name in LOSSES:
        assert str(loss_of(name)) == name
    for loss, *_ in CASES.values():
        assert loss_of(str(loss)) == loss_of(loss)
