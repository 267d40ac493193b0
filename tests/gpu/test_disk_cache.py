"""On a GPU: a module that is built again computes the same, and no compiler is started for it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm
from torch import nn

import byoc_cudnn
from relay_wgrad.frontend import from_torch
from relay_wgrad.training.cuda_tools import cuda_compiler
from relay_wgrad.training.step import ADJOINT, converted, step_module

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]


def started(command: Any) -> bool:
    """Whether a command is one of a compiler that does more than to tell its version."""
    words = [command] if isinstance(command, str) else list(map(str, command))
    compiler = Path(words[0]).name.startswith(("g++", "clang", "c++", "nvcc"))
    return compiler and "--version" not in words


def test_a_second_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1),
        nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    graph = from_torch(net, (torch.zeros(4, 3, 16, 16),))
    module = converted(
        step_module(graph, dtype="bfloat16", wide_weight_gradients=False, raise_norms=True),
        "NHWC", blocks=True,
    )  # fmt: skip
    module, _ = byoc_cudnn.partition(module, ("cudnn",), products=True)
    commands: list[Any] = []
    kernels: list[str] = []
    popen, nvcc = subprocess.Popen.__init__, tvm.support.nvcc

    def noted(self: Any, command: Any, *args: Any, **named: Any) -> None:
        commands.append(command)
        popen(self, command, *args, **named)

    def noting(name: str, compile_: Any) -> Any:
        return lambda *args, **named: (kernels.append(name), compile_(*args, **named))[1]

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    for name in ("_compile_cuda_nvcc", "_compile_cuda_nvrtc"):
        monkeypatch.setattr(nvcc, name, noting(name, getattr(nvcc, name)))
    device = tvm.cuda(0)
    images = torch.randn(4, 3, 16, 16).numpy(), torch.tensor([0, 3, 1, 4]).numpy()
    batch = {spec.name: value for spec, value in zip(graph.inputs, images, strict=False)}
    arguments = [tvm.runtime.tensor(a, device) for a in graph.arguments(batch)]

    def results() -> list[bytes]:
        with cuda_compiler():
            vm = byoc_cudnn.build(module).virtual_machine(device)
        outputs, gradients = vm[ADJOINT](*arguments)
        return [t.numpy().tobytes() for t in (*outputs, *gradients)]

    first = results()
    assert any(map(started, commands))
    assert len(kernels) == 1
    commands.clear()
    assert results() == first
    assert not any(map(started, commands)), commands
    assert len(kernels) == 1
