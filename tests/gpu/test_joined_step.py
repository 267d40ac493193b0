"""A step of joins, cuts and sums among convolutions and normalizations, beside float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from relay_wgrad.frontend import from_torch
from relay_wgrad.training.devices import place
from relay_wgrad.training.options import Options
from relay_wgrad.training.step import ADJOINT, converted, step_module

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]


def block(inside: int, outside: int, kernel: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.ReLU())


class Net(nn.Module):
    """Res2Net's cuts, a dense block's joins of joins, a dual path's sums of cuts, odd widths; then
    a block whose normalizations come first, and a join of what is pooled with what it becomes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = block(3, 52)
        self.parts = nn.ModuleList(block(13, 13, 3) for _ in range(3))
        self.joined = block(52, 32)
        self.dense = nn.ModuleList(block(32 + 16 * i, 16, 3) for i in range(3))
        self.dual = block(80, 48)
        self.grown = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 16, 3, padding=1, bias=False))
            for c in (80, 96, 112)
        )
        self.left, self.low, self.across = block(128, 64), block(64, 64), block(128, 32)
        self.last = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).split(13, 1))
        found: list[torch.Tensor] = []
        for part, layer in zip(parts, self.parts, strict=False):
            found.append(layer(part + found[-1] if found else part))
        x = self.joined(torch.cat([*found, parts[3]], 1))
        known = [x]
        for layer in self.dense:
            known.append(layer(torch.cat(known, 1)))
        whole = torch.cat(known, 1)
        added, more = self.dual(whole).split([32, 16], 1)
        whole = torch.cat([whole[:, :32] + added, whole[:, 32:64], more + whole[:, 64:]], 1)
        known = [whole]
        for layer in self.grown:
            known.append(layer(torch.cat(known, 1)))
        left = self.left(torch.cat(known, 1))
        low = self.low(nn.functional.max_pool2d(left, 3, 1, 1))
        return self.last(self.across(torch.cat([left, low], 1)).mean((2, 3)))


def gradients(device: str, dtype: str | None, module: nn.Module, x: Any, labels: Any) -> Any:
    """Of all parameters by name, and the names of what the compiled step calls."""
    graph = from_torch(copy.deepcopy(module), (x,))
    where = place(device, Options(tf32=False, graph=False)) if device != "cpu" else place(device)
    mod = step_module(graph, dtype=dtype, wide_weight_gradients=False, raise_norms=where.norms)
    compiled = where.compile(converted(mod, where.layout, blocks=where.blocks), lambda what: None)
    values = {s.name: v for s, v in zip(graph.inputs, (x.numpy(), labels.numpy()), strict=False)}
    arrays = graph.arguments({**graph.draws(0, 0), **values})
    _, found = compiled.vm[ADJOINT](
        *(tvm.runtime.tensor(np.asarray(a), where.device) for a in arrays)
    )
    names = [str(name) for name in graph.trainable]
    return {
        n: torch.tensor(g.numpy()).double() for n, g in zip(names, found, strict=True)
    }, compiled


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_gradients(dtype: str | None) -> None:
    compare(dtype, "cuda:0")


def compare(dtype: str | None, device: str) -> None:
    """A CPU's step is right too, and shows that what is compared is the same."""
    torch.manual_seed(0)
    module, x = Net().train(), torch.randn(4, 3, 9, 7)
    labels = torch.randint(0, 10, (4,))
    ours, compiled = gradients(device, dtype, module, x, labels)
    if device != "cpu":
        taken = [entry for entry in compiled.direct if entry.symbol.startswith("relay_wgrad_joins")]
        assert len(taken) > 10
        words = "\n".join(compiled.plans())
        assert all(word in words for word in (" within 0 128", " at 0 128", " 0+of128"))
    exact = copy.deepcopy(module).double()
    nn.functional.cross_entropy(exact(x.double()), labels).backward()
    want = {n.replace(".", "_"): p.grad for n, p in exact.named_parameters()}
    half = torch.float16 if dtype == "float16" else torch.bfloat16
    theirs = copy.deepcopy(module)
    with torch.autocast("cpu", half, enabled=dtype is not None):
        loss = nn.functional.cross_entropy(theirs(x), labels)
    loss.backward()
    usual = {n.replace(".", "_"): p.grad for n, p in theirs.named_parameters()}
    assert {n.replace(".", "_") for n in ours} == set(want)
    most = max(float(g.norm()) for g in want.values() if g is not None)
    for name, got in ours.items():
        right, other = want[name.replace(".", "_")], usual[name.replace(".", "_")]
        assert right is not None
        assert other is not None
        size = float(right.norm()) + 1e-2 * most
        error, common = (float((v.double() - right).norm()) / size for v in (got, other))
        assert error <= max(3 * common, 5e-2 if dtype else 1e-4), (name, error, common)
