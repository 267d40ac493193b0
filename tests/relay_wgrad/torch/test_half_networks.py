"""Random small networks in half precision, each way on the CPU: output and gradients are no
further from float64 than eager's are.

They are smooth: the sign of a ReLU's operand, or which of two numbers is the maximum, turns by one
rounding, and then eager's gradients too are up to ten times as far as they were.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import nn

import relay_wgrad.torch as rt
from relay_wgrad.torch.compiler import backend
from relay_wgrad.torch.reports import compiled_graphs

pytestmark = [pytest.mark.usefixtures("registered"), pytest.mark.longer]

F = nn.functional
PIXELS = 8


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


class Gate(nn.Module):
    """Channels by a gate that sees their means."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(c, 2, 1), nn.Conv2d(2, c, 1)

    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


class Attention(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(c), nn.Linear(c, 3 * c)

    def forward(self, x: Any) -> Any:
        rows = self.inner(self.norm(x.flatten(2).transpose(1, 2)))
        q, k, v = (part[:, None] for part in rows.chunk(3, -1))
        made = F.scaled_dot_product_attention(q, k, v)[:, 0]
        return x + made.transpose(1, 2).reshape(x.shape)


BLOCKS: dict[str, Any] = {
    "plain": lambda c: [nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.SiLU()],
    "depthwise": lambda c: [nn.Conv2d(c, c, 3, padding=1, groups=c), nn.GroupNorm(2, c), nn.GELU()],
    "dilated": lambda c: [nn.Conv2d(c, c, 3, padding=2, dilation=2), nn.Tanh()],
    "one tap": lambda c: [nn.Conv2d(c, c, 1), nn.GELU(approximate="tanh")],
    "strided": lambda c: [nn.Conv2d(c, c, 3, stride=2, padding=1), nn.Mish(), nn.Upsample(PIXELS)],
    "transposed": lambda c: [nn.ConvTranspose2d(c, c, 2, stride=2), nn.AvgPool2d(2)],
    "residual": lambda c: [
        Residual(nn.Conv2d(c, c, 3, padding=1, groups=2), nn.BatchNorm2d(c), nn.Softplus())
    ],
    "gate": lambda c: [Gate(c)],
    "attention": lambda c: [Attention(c)],
    "softmax": lambda c: [nn.Softmax(1), nn.Conv2d(c, c, 3, padding=1)],
    "instance": lambda c: [nn.InstanceNorm2d(c, affine=True), nn.Sigmoid()],
    "upsampled": lambda c: [
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(c, c, 3, stride=2, padding=1)
    ],
}  # fmt: skip


def network(seed: int) -> nn.Module:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    names = rng.sample(list(BLOCKS), 4)
    layers = [nn.Conv2d(3, 8, 3, padding=1), *(layer for n in names for layer in BLOCKS[n](8))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))


def stepped(model: Any, of: nn.Module, x: Any, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Output and gradients, under autocast to a type if there is one."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        y = model(x)
        loss = F.cross_entropy(y.float() if y.itemsize < 4 else y, torch.arange(len(x)))
    loss.backward()
    return [y.detach(), x.grad, *(p.grad for p in of.parameters())]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", ["compiled autocast", "compiled half", "training step"])
@pytest.mark.parametrize("seed", range(3))
def test_random_networks(seed: int, way: str, dtype: torch.dtype) -> None:
    exact, x = network(seed).double(), torch.randn(4, 3, PIXELS, PIXELS).double()
    autocast = None if way == "compiled half" else dtype
    module = copy.deepcopy(exact).to(torch.float32 if autocast else dtype)
    twin, near = copy.deepcopy(module), x.to(torch.float32 if autocast else dtype)
    if way == "training step":
        with torch.autocast("cpu", dtype):
            model: Any = rt.TrainingStep(module, near.clone().requires_grad_())
    else:
        model = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    wanted = stepped(exact, exact, x, None)
    theirs = stepped(twin, twin, near, autocast)
    ours = stepped(model, module, near, autocast)
    if way != "training step":
        assert [graph.reason for graph in compiled_graphs()[-2:]] == ["", ""]
        assert [t.dtype for t in ours] == [t.dtype for t in theirs]
    floor = 1e-3 * max(float(t.norm()) for t in wanted)  # a bias before a norm has no gradient
    for i, (a, b, c) in enumerate(zip(ours, theirs, wanted, strict=True)):
        off, eager = ((t.double() - c).norm() for t in (a, b))
        assert off <= 2 * eager + 2 * torch.finfo(dtype).eps * (c.norm() + floor), i
