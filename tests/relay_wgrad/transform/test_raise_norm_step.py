"""A training step whose batch normalizations are operators computes what it did before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

import legalize.cpu
from relay_wgrad.frontend import from_torch
from relay_wgrad.ops.train_norm import BACKWARD, FORWARD
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.compiled import virtual_machine

pytestmark = [
    pytest.mark.usefixtures("registered"),
    pytest.mark.longer("whole networks; smaller ones stay"),
]


class Block(nn.Module):
    """ReLU, a sum of two normalizations with ReLU, a sum without it, ReLU6, no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))
        self.plain = nn.BatchNorm2d(4, affine=False)
        self.last = nn.Linear(4, 5)
        for norm in self.norms:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        y = torch.relu(self.norms[0](x))
        y = torch.relu(self.norms[1](y * y) + self.norms[2](x))
        y = y + self.norms[3](torch.sin(y))
        y = nn.functional.relu6(self.plain(y))
        return self.last(y.mean((2, 3)))


@pytest.fixture
def graph(registered: None) -> Any:
    torch.manual_seed(0)
    return from_torch(Block().double(), (torch.zeros(3, 3, 6, 5, dtype=torch.float64),))


def results(module: tvm.IRModule, values: Any) -> list[Any]:
    target = legalize.cpu.host_target()
    vm = virtual_machine(module, target, cpu_pipeline())
    outputs, gradients = vm[ADJOINT](*(tvm.runtime.tensor(v) for v in values))
    return [np.asarray(t.numpy()) for t in (*outputs, *gradients)]


def names(module: tvm.IRModule) -> list[str]:
    func = module[ADJOINT]
    ops = [b.value.op for b in func.body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    return [str(getattr(op, "name", "")) for op in ops]


def test_a_step_of_operators(graph: Any) -> None:
    """In another layout, and with checkpoints: what it was."""
    batch = graph.random_batch(0)
    values = graph.arguments(batch)
    want = results(step_module(graph), values)
    plain = converted(step_module(graph, raise_norms=True), "NHWC")
    found = names(plain)
    assert found.count(FORWARD) == found.count(BACKWARD) == 5
    assert not {"relax.rsqrt", "relax.sqrt"}.intersection(found)
    again = step_module(graph, raise_norms=True, checkpoint="auto")
    assert names(again).count(FORWARD) > 5  # some are computed again
    for module in (plain, again):
        got = results(module, values)
        assert len(want) == len(got) == len(graph.outputs) + len(graph.trainable)
        for a, b in zip(got, want, strict=True):
            assert np.linalg.norm(a - b) < 1e-11 * max(np.linalg.norm(b), 1)
