"""A whole step with what its memory plan does and without: the same bits, and less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm

import byoc_cudnn
from relay_wgrad.frontend import from_torch
from relay_wgrad.pipeline import arena, cpu, fused_kernels, kernel_order
from relay_wgrad.pipeline.arena import NAME, Arena, lifetimes
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.overwrites import overwrites_of
from relay_wgrad.training.compiled import planned_memory
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.compiled import virtual_machine
from tests.support.torch.plain_networks import UNet, VolumeUNet

PASSES = ("Joined", "OneResult", "Unread", "Overwrites", "Order", "Again")


def volume() -> tuple[Any, tuple[int, ...]]:
    return VolumeUNet(instance=True, widths=(4, 8)), (2, 1, 8, 8, 8)


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


class PlannedError(Exception):
    """Enough is known."""


def gpu_plan(mod: tvm.IRModule) -> tvm.IRModule:
    """The step as `Arena` gets it, compiled for an H200 that is not there."""
    found: list[tvm.IRModule] = []

    @tvm.instrument.pass_instrument
    class Watch:
        def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
            if str(info.name) == NAME:
                found.append(mod)
                raise PlannedError

    target = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
              "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip
    # TVM raises an instrument's error as one of its own.
    stopped = pytest.raises((PlannedError, RuntimeError))
    with tvm.transform.PassContext(instruments=[Watch()]), stopped:
        byoc_cudnn.build(mod, target, pipeline=cuda_pipeline(keep_memory=True), direct=True)
    return found[0]


def test_a_gpu_writes_gradients_of_norms_in_place(
    registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = VolumeUNet(instance=True, widths=(32, 64))
    graph = from_torch(network.train(), (torch.zeros(2, 1, 32, 32, 32),))
    step = step_module(graph, dtype="bfloat16", wide_weight_gradients=False, raise_norms=True)
    mod, _ = byoc_cudnn.partition(converted(step, "NHWC", blocks=True), ("cudnn",))
    plans = [gpu_plan(mod)]
    for room in (arena, kernel_order):
        monkeypatch.setattr(room, "overwrites_of", lambda mod, callee: [])
    plans.append(gpu_plan(mod))
    monkeypatch.undo()
    names = []
    for tensor in lifetimes(plans[0][ADJOINT], plans[0]):
        if tensor.over is not None:
            assert overwrites_of(plans[0], tensor.kernel)
            names.append(str(tensor.kernel.global_symbol))
    assert len(names) == 6  # of each normalization's two tensors one ends at its gradient
    assert all(name.startswith("relay_wgrad_norm") for name in names)
    sizes = []
    for plan in plans:
        with planned_memory() as planned:
            monkeypatch.setattr(arena, "overwrites_of", overwrites_of if not sizes else _none)
            Arena()(plan)
        sizes.append(planned.bytes[ADJOINT])
    assert sizes[0] < 0.95 * sizes[1]


def _none(mod: Any, callee: Any) -> list[Any]:
    return []
