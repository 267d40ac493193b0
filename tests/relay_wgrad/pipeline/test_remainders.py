"""Loops whose counters are divided by powers of two: LLVM's vectors read beyond a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as F
from tvm import te, tirx
from tvm_ffi import structural_walk

from legalize.cpu import host_target
from relay_wgrad.keys import SCHEDULED
from relay_wgrad.pipeline.remainders import split_by_masks

pytestmark = pytest.mark.usefixtures("registered")
N = 48
Index = Callable[[Any, Any], Any]
# What of two tensors is added, by row and column.
CASES: dict[str, tuple[Index, Index]] = {
    "strided": (lambda j, i: j % 4 * 4 + i % 4, lambda j, i: i % 4 * 144),
    "and a quotient": (lambda j, i: j % 4 * 4 + i % 4, lambda j, i: i % 4 * 144 + i // 4),
    "a pixel shuffle": (
        lambda j, i: j % 4 * 4 + i % 4,
        lambda j, i: j % 4 * 576 + i % 4 * 144 + j // 4 * 12 + i // 4,
    ),
    "turns that begin elsewhere": (lambda j, i: (j + i) % 4, lambda j, i: (i + 3) % 4 * 144),
    "two powers": (lambda j, i: i % 16 // 4 + i % 4 * 4, lambda j, i: i % 8 * 16 + j),
    "no whole turns": (lambda j, i: j % 4 * 4 + i % 32, lambda j, i: i % 32 * 44 + j),
    "backwards": (lambda j, i: 15 - i % 16, lambda j, i: i % 16 * 144),
}


def kernel(first: Index, second: Index, columns: int = N) -> tirx.PrimFunc:
    x, b = te.placeholder((4096,), name="x"), te.placeholder((64,), name="b")
    y = te.compute((N, columns), lambda j, i: x[second(j, i)] + b[first(j, i)], name="y")
    return te.create_prim_func([x, b, y]).with_attr(SCHEDULED, True)


def ran(func: tirx.PrimFunc, x: Any, b: Any, columns: int = N) -> Any:
    y = tvm.runtime.tensor(np.full((N, columns), np.nan, "float32"))
    made = tvm.compile(tvm.IRModule({"main": func}), target=host_target())
    made["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(b), y)
    return y.numpy()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("columns", [N, 50])
def test_numbers_are_those_of_the_indices(case: str, columns: int) -> None:
    first, second = CASES[case]
    rng = np.random.default_rng(0)
    x, b = (rng.random(n, "float32") for n in (4096, 64))
    j, i = np.mgrid[:N, :columns]
    made = split_by_masks(kernel(first, second, columns))
    np.testing.assert_array_equal(ran(made, x, b, columns), x[second(j, i)] + b[first(j, i)])


def loops(func: tirx.PrimFunc) -> list[Any]:
    found: list[Any] = []
    structural_walk(func.body, (tirx.For, found.append))
    return found


def test_a_loop_is_two_and_the_rest_stays() -> None:
    split = split_by_masks(kernel(*CASES["strided"]))
    assert sorted(int(loop.extent) for loop in loops(split)) == [4, 4, 12, 12]
    assert {int(loop.kind) for loop in loops(split)} == {tirx.ForKind.SERIAL}
    turned = split_by_masks(kernel(*CASES["turns that begin elsewhere"]))
    assert [int(x.extent) for x in loops(turned) if int(x.kind) == tirx.ForKind.UNROLLED] == [4]
    for index in (lambda j, i: i % 3, lambda j, i: i // 4, lambda j, i: i % 256):
        same = kernel(index, index)
        assert split_by_masks(same).same_as(same)


def test_a_shuffled_product_and_an_unshuffled_ones_gradient() -> None:
    import relay_wgrad.torch as rt

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gain = nn.Conv2d(3, 16, 3), nn.Parameter(torch.randn(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            small = F.pixel_unshuffle(y, 4) * self.gain.repeat(16)[:, None, None]
            return F.pixel_shuffle(y * self.gain[:, None, None], 4).mean() + small.square().sum()

    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(2, 3, 18, 18)
    loss, want = rt.TrainingStep(model, x)(x), model(x)
    torch.testing.assert_close(loss, want, atol=1e-5, rtol=1e-5)
    gradients = (torch.autograd.grad(y, [*model.parameters()]) for y in (loss, want))
    for a, b in zip(*gradients, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


@pytest.mark.parametrize("block", [2, 4, 8])
def test_pixel_shuffles_with_biases(block: int) -> None:
    import relay_wgrad.torch as rt

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 3 * block**2, 1), nn.PixelShuffle(block))
    x = torch.randn(2, 3, 12, 12)
    y = rt.TrainingStep(model, x)(x)
    torch.testing.assert_close(y, model(x), atol=1e-5, rtol=1e-5)
