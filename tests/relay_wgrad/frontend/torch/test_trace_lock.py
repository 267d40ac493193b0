"""One thread at a time traces, and others train with PyTorch meanwhile as they would."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from relay_wgrad.ambient import outside
from relay_wgrad.frontend import from_torch

pytestmark = pytest.mark.usefixtures("registered")


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return 2 * grads[0]


class Slow(nn.Module):
    """Waits in its forward pass, and counts who else is in one."""

    inside = most = 0
    entered = threading.Event()
    leave = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Slow.inside += 1
        Slow.most = max(Slow.most, Slow.inside)
        Slow.entered.set()
        Slow.leave.wait(20)
        Slow.inside -= 1
        return self.layer(x)


def test_threads() -> None:
    found: list[Any] = []

    def trace() -> None:
        try:
            found.append(from_torch(Slow(), (torch.ones(2, 2),)).trainable)
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=trace) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert Slow.entered.wait(60)
    # This thread is not the one that traces: hooks and functions of its own are none of its.
    x = torch.ones(2, requires_grad=True)
    y = Twice.apply(x)
    y.register_hook(lambda g: 3 * g)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 6.0]
    with outside():  # this thread's modes, not those of the one that traces
        Slow.leave.set()
        for thread in threads:
            thread.join(60)
    assert found == [("layer_weight", "layer_bias")] * 2
    assert Slow.most == 1
    y.register_hook(lambda g: g)  # nothing is left of what refuses it while tracing
