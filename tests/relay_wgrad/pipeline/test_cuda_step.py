"""A whole training step in half precision is compiled for CUDA, up to its source: no GPU is needed.

In a child process: TVM's dlight crashed there, in its rule for matrix products.
"""

from __future__ import annotations

import pytest

from tests.support.children import run_code

# What ResNet-50 and MobileNetV2 multiply at batch 256, of few and small layers.
CODE = """
import torch
import tvm
from torch import nn
import relay_wgrad
from relay_wgrad.frontend import from_torch
from relay_wgrad.training.step import step_module
from relay_wgrad.pipeline.cuda import cuda_pipeline

relay_wgrad.register()

class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.BatchNorm2d(width), nn.ReLU6(), nn.Conv2d(width, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.layers(x))

def net(features):
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
        nn.MaxPool2d(3, 2, 1), Residual(32), nn.Conv2d(32, features, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(features, 1000),
    )

target = tvm.target.Target({
    "kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152, "thread_warp_size": 32,
}, host="llvm")
for features in (1280, 2048):
    graph = from_torch(net(features), (torch.zeros(256, 3, 16, 16),))
    step = step_module(graph, dtype="float16")
    made = tvm.compile(step, target=target, relax_pipeline=cuda_pipeline())
    (host,) = made.mod.imports
    (device,) = host.imports
    source = device.inspect_source("cuda")
    assert "AllocWorkspace" not in host.inspect_source("ll")  # a captured graph would lose it
    assert device.kind == "cuda" and source.count("__global__") > 40, source[:500]
    print("compiled", source.count("__global__"))
"""


@pytest.mark.longer("whole networks; smaller ones stay")
def test_step_in_half_precision() -> None:
    done = run_code(CODE, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("compiled") == 2
