"""A training step of convolutions with bias and ReLU on a device: what stays in cuDNN's calls."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

import byoc_cudnn
from relay_wgrad.frontend import from_torch
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.gpu.runner import choose_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]


class Net(nn.Module):
    """Bias and ReLU, max pooling after it, two branches that are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 24, 3, padding=1)
        self.left, self.right = nn.Conv2d(24, 16, 1), nn.Conv2d(24, 8, 3, padding=1)
        self.c, self.last = nn.Conv2d(24, 32, 3, padding=1), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        x = nn.functional.max_pool2d(self.b(self.a(x).relu()).relu(), 2)
        x = torch.cat([self.left(x).relu(), self.right(x).relu()], 1)
        return self.last(self.c(nn.functional.max_pool2d(x, 3, 2, 1)).relu().mean((2, 3)))


def ours(graph: Any, batch: dict[str, Any], dtype: str | None) -> list[list[np.ndarray]]:
    step = converted(step_module(graph, dtype=dtype, wide_weight_gradients=False), "NHWC")
    options = {"allow_tf32": False, "deterministic": True}
    mod, report = byoc_cudnn.partition_for_cudnn(step, products=True, **options)
    rows = report.rows()
    assert rows["cudnn.fprop_bias_relu"] == 5
    assert rows.get("cudnn.dgrad_strictmask", 0) == (2 if dtype else 0)
    device = tvm.cuda(0)
    vm = byoc_cudnn.build(mod).virtual_machine(device)
    given = [tvm.runtime.tensor(v, device) for v in graph.arguments(batch)]
    return [[t.numpy() for t in vm[ADJOINT](*given)[1]] for _ in range(2)]


def pytorch(net: nn.Module, batch: dict[str, Any], dtype: str | None) -> dict[str, np.ndarray]:
    wide = torch.float64 if dtype == "float64" else torch.float32
    one = copy.deepcopy(net).cuda().to(wide)
    half = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(str(dtype))
    with torch.autocast("cuda", dtype=half, enabled=half is not None):
        logits = one(torch.tensor(batch["x"]).cuda().to(wide))
        loss = nn.functional.cross_entropy(logits, torch.tensor(batch["labels"]).cuda())
    loss.backward()
    return {n.replace(".", "_"): p.grad.double().cpu().numpy() for n, p in one.named_parameters()}


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_a_step(dtype: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """About as near to float64 as PyTorch's own step in the dtype; twice the same bits."""
    choose_compiler()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    net = Net()
    graph = from_torch(net, (torch.zeros(8, 3, 16, 16),))
    batch = graph.random_batch(0)
    exact, theirs = pytorch(net, batch, "float64"), pytorch(net, batch, dtype)
    first, second = ours(graph, batch, dtype)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))

    def far(values: dict[str, np.ndarray]) -> float:
        got, want = (
            np.concatenate([v[name].astype("float64").ravel() for name in graph.trainable])
            for v in (values, exact)
        )
        return float(np.linalg.norm(got - want) / np.linalg.norm(want))

    mine, yardstick = far(dict(zip(graph.trainable, first, strict=True))), far(theirs)
    print(f"{dtype}: {mine:.2e}, PyTorch's {yardstick:.2e}")
    assert mine < 1.5 * yardstick + 2e-5, (mine, yardstick)
