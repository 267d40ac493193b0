"""Max pooling's kernels on a GPU, over random windows and shapes, against PyTorch on the CPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from byoc_cudnn.pool import PoolCall, generate, inputs
from relay_wgrad.dtypes import FLOATS
from tests.support.gpu.norm_runner import load_source

pytestmark = pytest.mark.gpu

WINDOWS = (  # kernel, strides, padding, rounded up
    ((3, 3), (2, 2), (1, 1), False),
    ((2, 2), (2, 2), (0, 0), False),
    ((3, 3), (2, 2), (0, 0), True),
    ((3, 3), (1, 1), (1, 1), False),
    ((3, 2), (2, 3), (1, 0), False),
    ((1, 5), (4, 1), (0, 2), True),
)


def call_of(direction: str, dtype: str, window: int, index: bool) -> PoolCall:
    kernel, strides, (top, left), _ = WINDOWS[window]
    symbol = f"{direction}_{dtype}_{window}" + "_index" * index
    return PoolCall(symbol, direction, dtype, kernel, strides, (top, left, top, left), index)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    calls = [
        call_of(direction, dtype, window, index)
        for direction in ("forward", "backward")
        for dtype in FLOATS
        for window in range(len(WINDOWS))
        for index in (False, True)
    ]
    return load_source(generate, inputs, calls, tmp_path_factory.mktemp("pool"))


def run(functions: Any, x: torch.Tensor, dtype: str, window: int, seed: int) -> None:
    """Ours and PyTorch's of x (N, H, W, C), whose gradients are small integers: sums are exact."""
    kernel, strides, padding, up = WINDOWS[window]
    wide = x.cpu().double().permute(0, 3, 1, 2).requires_grad_()
    want = F.max_pool2d(wide, kernel, strides, padding, ceil_mode=up)
    generator = torch.Generator().manual_seed(seed)
    grad = torch.randint(-4, 5, want.shape, generator=generator).double()
    want.backward(grad)
    assert wide.grad is not None
    y = torch.full(want.permute(0, 2, 3, 1).shape, 7.0, device="cuda", dtype=x.dtype)
    dx = torch.full(x.shape, float("nan"), device="cuda", dtype=x.dtype)
    dy = grad.permute(0, 2, 3, 1).contiguous().to(x.dtype).cuda()
    functions[f"forward_{dtype}_{window}"](x, y)
    functions[f"backward_{dtype}_{window}"](dy, x, dx)
    right = want.detach().permute(0, 2, 3, 1)
    torch.testing.assert_close(y.cpu().double(), right, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(dx.cpu().double(), wide.grad.permute(0, 2, 3, 1))
    first = y.clone(), dx.clone()
    index = torch.full(y.shape, 255, device="cuda", dtype=torch.uint8)
    y.fill_(7)
    dx.fill_(float("nan"))
    functions[f"forward_{dtype}_{window}_index"](x, y, index)
    functions[f"backward_{dtype}_{window}_index"](dy, index, dx)
    for got, before in zip((y, dx), first, strict=True):
        assert torch.equal(got.view(torch.uint8), before.view(torch.uint8))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("window", range(len(WINDOWS)))
def test_random_shapes(functions: Any, dtype: str, window: int) -> None:
    rng = random.Random(window)
    for i, side in enumerate((112, 17, 16, 5, 33)):
        shape = (rng.randint(1, 3), side, rng.randint(5, 40), rng.choice([1, 7, 8, 64, 72, 130]))
        generator = torch.Generator().manual_seed(i)
        # Few values, so that many are equal: the first gets the gradient.
        x = torch.randint(-5, 6, shape, generator=generator).to(getattr(torch, dtype)).cuda()
        run(functions, x, dtype, window, i)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_special_values(functions: Any, value: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, 9, 9, 16), generator=generator).half()
    x[torch.rand(x.shape, generator=generator) < 0.2] = value
    run(functions, x.cuda(), "float16", 0, 0)
    run(functions, torch.full((1, 6, 6, 8), value, device="cuda").half(), "float16", 0, 0)


def test_calls_are_checked(functions: Any) -> None:
    x, y = (torch.zeros((1, s, s, 8), device="cuda").half() for s in (9, 5))
    function = functions["backward_float16_0"]
    with pytest.raises(ValueError, match="9 pixels have 5 windows, got 9"):
        function(x, x, x)
    with pytest.raises(ValueError, match="shapes that do not fit each other"):
        function(y, x, y)
    with pytest.raises(TypeError, match="index must be uint8"):
        functions["forward_float16_0_index"](x, y, y)
    with pytest.raises(ValueError, match="index has another shape than the windows"):
        functions["backward_float16_0_index"](y, x.to(torch.uint8), x)
