"""A weight whose filters are standardized: rows of the layer's normalization, a filter each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional

from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, step_module
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")


class Standardized(nn.Module):
    """A convolution as networks without normalizations have it, and one that is normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = nn.Conv2d(3, 5, 3), nn.Parameter(torch.rand(5, 1, 1, 1) + 0.5)
        self.norm = nn.BatchNorm2d(5)

    def forward(self, x: Any) -> Any:
        w = self.conv.weight.reshape(1, 5, -1)
        made = functional.batch_norm(
            w, None, None, weight=(self.gain * 0.7).view(-1), training=True, momentum=0.0, eps=1e-4
        )
        y = functional.conv2d(x, made.reshape_as(self.conv.weight), self.conv.bias)
        return self.norm(y).mean((2, 3))


class Other(nn.Module):
    """A batch of one image's parameters, whose running statistics are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.norm = nn.Parameter(torch.randn(1, 5, 3)), nn.BatchNorm1d(5)

    def forward(self, x: Any) -> Any:
        return x.mean((2, 3)) @ self.norm(self.w)[0].T


def calls(mod: tvm.IRModule) -> list[Any]:
    values = [b.value for b in mod[ADJOINT].body.blocks[0].bindings]
    return [v for v in values if op_name(v).endswith("_norm_train")]


def test_filters_are_rows() -> None:
    torch.manual_seed(0)
    module, x = Standardized().train(), torch.randn(1, 3, 6, 7)
    labels = torch.tensor([2])
    graph = from_torch(module, (x,))
    mod = step_module(graph, raise_norms=True)
    filters, images = calls(mod)
    assert op_name(filters) == "relax.nn.group_norm_train"
    assert [int(n) for n in filters.args[0].ty.shape.values] == [5, 1, 27]
    assert op_name(images) == "relax.nn.batch_norm_train"  # of one image too, with statistics
    values = {s.name: v for s, v in zip(graph.inputs, (x, labels), strict=False)}
    arrays = graph.arguments({n: v.numpy() for n, v in values.items()})
    args = [tvm.runtime.tensor(np.asarray(a)) for a in arrays]
    outputs, gradients = virtual_machine(mod)[ADJOINT](*args)
    loss = functional.cross_entropy(module(x), labels)
    loss.backward()
    assert abs(float(outputs[0].numpy()) - float(loss.detach())) < 1e-5
    wanted = {n.replace(".", "_"): p for n, p in module.named_parameters()}
    for name, got in zip(graph.trainable, gradients, strict=True):
        want = wanted[name].grad.numpy()
        scale = max(float(np.linalg.norm(want)), 1e-2)
        assert np.linalg.norm(got.numpy().reshape(want.shape) - want) < 1e-4 * scale, name


def test_statistics_that_have_another_use_are_a_batchs() -> None:
    graph = from_torch(Other().train(), (torch.zeros(2, 3, 4, 4),))
    (found,) = calls(step_module(graph, raise_norms=True))
    assert op_name(found) == "relax.nn.batch_norm_train"
