"""nnU-Net's losses by `from_torch`: Dice with cross-entropy, ignored labels, deep supervision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as f

from relay_wgrad.frontend import from_torch
from relay_wgrad.training.step import ADJOINT, step_module
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.torch.segmentation_losses import DiceAndCrossEntropy, SoftDice

pytestmark = pytest.mark.usefixtures("registered")


class Supervised(nn.Module):
    """A network of two resolutions, each with a loss of its own; their weighted sum."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss, self.first = loss, nn.Conv3d(1, 4, 3, padding=1)
        self.norm, self.down = nn.InstanceNorm3d(4, affine=True), nn.Conv3d(4, 4, 3, 2, 1)
        self.heads = nn.ModuleList(nn.Conv3d(4, 3, 1) for _ in range(2))

    def forward(self, x: Any, fine: Any, coarse: Any) -> Any:
        a = f.leaky_relu(self.norm(self.first(x)), 0.01)
        b = f.leaky_relu(self.down(a), 0.01)
        outputs = [head(y) for head, y in zip(self.heads, (a, b), strict=True)]
        pairs = zip((2 / 3, 1 / 3), outputs, (fine, coarse), strict=True)
        return sum(weight * self.loss(one, wanted) for weight, one, wanted in pairs)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("ignore", "batch_dice", "do_bg", "smooth"), [(None, True, False, 1e-5), (2, False, True, 1.0)]
)
def test_dice_with_cross_entropy(
    ignore: int | None, batch_dice: bool, do_bg: bool, smooth: float
) -> None:
    torch.manual_seed(0)
    net = Supervised(DiceAndCrossEntropy(ignore, SoftDice(batch_dice, do_bg, smooth))).double()
    x = torch.randn(2, 1, 4, 6, 4, dtype=torch.float64)
    labels = [torch.randint(0, 3, (2, 1, *size)) for size in ((4, 6, 4), (2, 3, 2))]
    graph = from_torch(net, (x, *labels), loss="own")
    batch = {s.name: t.numpy() for s, t in zip(graph.inputs, (x, *labels), strict=True)}
    given = [tvm.runtime.tensor(v) for v in graph.arguments(batch)]
    step = step_module(graph, raise_norms=True)
    outputs, gradients = virtual_machine(step, FAST)[ADJOINT](*given)
    want, named = net(x, *labels), dict(net.named_parameters())
    wanted = torch.autograd.grad(want, [named[graph.onnx_names[n]] for n in graph.trainable])
    assert abs(float(outputs[0].numpy()) - float(want.detach())) < 1e-12
    for name, got, right in zip(graph.trainable, gradients, wanted, strict=True):
        error = np.linalg.norm(got.numpy() - right.numpy())
        # A bias before the normalization has no effect: both give rounding noise.
        assert error < 1e-11 * max(float(right.norm()), 1e-3), name
