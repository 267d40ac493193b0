"""The PyTorch functions of three dimensions on a device: cuDNN's kernels, and where it has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import relay_wgrad.torch as rt
from relay_wgrad.torch import kernels
from tests.support.torch.cases import Config, error, gradients, random_config

pytestmark = pytest.mark.gpu

TOLERANCE = {
    torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-12,
}  # fmt: skip
TYPICAL = Config(
    False, (2, 16, 7, 9, 8), (32, 8, 3, 3, 3), (2, 1, 1), (1, 1, 1), (0,) * 3, (1,) * 3, 2, True
)
LOPSIDED = Config(
    False, (1, 8, 5, 6, 5), (8, 8, 3, 2, 3), (1,) * 3, (1, 0, 2, 0, 1, 1), (0,) * 3, (1,) * 3, 1,
    True,
)  # fmt: skip
DOUBLE = Config(
    False, (1, 2, 3, 4, 3), (4, 1, 2, 3, 2), (1, 2, 1), (1, 1, 0), (0,) * 3, (1,) * 3, 2, True
)


@pytest.fixture(autouse=True)
def full_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side rounds to tf32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def compare(config: Config, operands: list[Any], seed: int) -> None:
    got = [t.cpu() for t in gradients(config.ours, operands, seed)]
    wide = [None if t is None else t.detach().cpu().double().requires_grad_() for t in operands]
    want = gradients(config.theirs, wide, seed)
    # The cotangents are the same up to their own rounding.
    assert max(map(error, got, want)) < 3 * TOLERANCE[operands[0].dtype], config


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_random_configurations(dtype: torch.dtype) -> None:
    """Convolutions and their transposes."""
    rng = np.random.default_rng(17)
    for seed in range(8):
        config = random_config(rng, rank=3)
        for one in (config, config.transpose()):
            compare(one, one.operands(seed, dtype, "cuda"), seed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("config", [TYPICAL, LOPSIDED], ids=["typical", "lopsided"])
def test_channels_last(config: Config, dtype: torch.dtype) -> None:
    x, w, b = (t.detach() for t in config.operands(1, dtype, "cuda"))
    last = x.contiguous(memory_format=torch.channels_last_3d)
    with kernels.recorded_calls() as heard:
        for given in (x, last, x.mT.contiguous().mT):
            operands = [t.detach().requires_grad_() for t in (given, w, b)]
            compare(config, operands, 1)
        y = config.ours(last, w, b)
    assert y.is_contiguous(memory_format=torch.channels_last_3d)
    assert {whose for _, whose in heard} == {"cudnn"}


def test_float64() -> None:
    """A plain reduction of this package: PyTorch's numbers, finite differences of two orders."""
    operands = DOUBLE.operands(0, torch.float64, "cuda")
    compare(DOUBLE, operands, 0)
    assert torch.autograd.gradcheck(DOUBLE.ours, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(DOUBLE.ours, operands, fast_mode=True)


def test_layers_captured_benchmarked_and_under_autocast() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        rt.Conv3d(3, 16, 3, stride=2, padding=1), torch.nn.ReLU(),
        rt.ConvTranspose3d(16, 4, 2, stride=2),
    ).cuda()  # fmt: skip
    for layer in (net[0], net[2]):
        layer.benchmark = True
    x = torch.randn(2, 3, 8, 8, 8, device="cuda")
    want = net(x)
    with torch.autocast("cuda", torch.float16):
        half = net(x)
    assert half.dtype == torch.float16
    assert error(half, want) < 1e-2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = net(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert error(out, net(x)) < 1e-6
