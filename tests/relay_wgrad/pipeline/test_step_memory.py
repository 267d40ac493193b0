"""A whole step with what its memory plan does and without: the same bits, and less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm

from relay_wgrad.frontend import from_torch
from relay_wgrad.pipeline import cpu, fused_kernels
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.training.compiled import planned_memory
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.compiled import virtual_machine
from tests.support.torch.plain_networks import UNet, VolumeUNet

PASSES = ("Joined", "Unread", "Overwrites", "Order")


def volume() -> tuple[Any, tuple[int, ...]]:
    return VolumeUNet(instance=True, widths=(4, 8, 8)), (2, 1, 16, 16, 16)


def residual() -> tuple[Any, tuple[int, ...]]:
    return VolumeUNet(True, widths=(4, 8, 8), blocks=(1, 2, 1), bias=True), (2, 1, 16, 16, 16)


def image() -> tuple[Any, tuple[int, ...]]:
    return UNet(classes=5, width=4, depth=2), (2, 3, 32, 32)


@pytest.mark.longer_cases("residual", "image", why="half a minute each")
@pytest.mark.parametrize("network", [volume, residual, image])
def test_bits_stay_and_memory_shrinks(
    network: Any, registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, shape = network()
    graph = from_torch(module.train(), (torch.randn(shape),))
    mod = converted(step_module(graph), "NHWC")
    arguments = [np.asarray(a) for a in graph.arguments(graph.random_batch(0))]
    args = [tvm.runtime.tensor(a) for a in arguments]
    all_passes, found, planned = fused_kernels.fused_kernels, [], []
    for ours in (True, False):
        if not ours:
            left = [p for p in all_passes() if str(p.info.name).rpartition(".")[2] not in PASSES]
            assert len(left) == len(all_passes()) - len(PASSES)
            monkeypatch.setattr(cpu, "fused_kernels", lambda left=left: left)
        with planned_memory() as plan:
            built = virtual_machine(mod, "llvm", cpu_pipeline())
        outputs, gradients = built[ADJOINT](*args)
        found.append([t.numpy() for t in (*outputs, *gradients)])
        planned.append(plan.bytes[ADJOINT])
    assert all(map(np.array_equal, *found))
    assert planned[0] < planned[1]
