"""Random configurations of `relay_wgrad.torch`'s functions, and PyTorch's own answer to each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import tvm

import legalize.cpu
import relay_wgrad.torch as rt
from relay_wgrad.torch import cache

F = torch.nn.functional
OTHERS = (torch.float16, torch.bfloat16, torch.float32)


@contextmanager
def quick_kernels() -> Iterator[None]:
    """While inside, CPU kernels are not optimised by LLVM: built in a third of the time."""
    full = legalize.cpu.host_target

    def quick(cores: int | None = None, *, allow_winograd: bool) -> tvm.target.Target:
        target = full(cores, allow_winograd=allow_winograd)
        return tvm.target.Target({**target.export(), "opt-level": 0})

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(legalize.cpu, "host_target", quick)
        monkeypatch.setattr(cache, "kept", cache.Cache())
        yield


@dataclass(frozen=True)
class Config:
    """A convolution or a transposed one, of images or volumes; sizes are the operands'."""

    transposed: bool
    input: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # one for each axis, or all before, then all after
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    bias: bool

    @property
    def rank(self) -> int:
        return len(self.stride)

    @property
    def bias_size(self) -> int:
        return self.weight[1] * self.groups if self.transposed else self.weight[0]

    def transpose(self) -> Config:
        """The transposed convolution of this convolution's output, to its input's shape."""
        pixels, extra = [], []
        for i in range(self.rank):
            size = self.input[2 + i] + self.padding[i] + self.padding[i - self.rank]
            rest = size - self.dilation[i] * (self.weight[2 + i] - 1) - 1
            pixels.append(rest // self.stride[i] + 1)
            extra.append(rest % self.stride[i])
        shape = (self.input[0], self.weight[0], *pixels)
        return replace(self, transposed=True, input=shape, output_padding=tuple(extra))

    def operands(
        self, seed: int, dtype: torch.dtype = torch.float64, device: str = "cpu"
    ) -> list[Any]:
        """[input, weight, bias or None], leaves that require gradients."""
        torch.manual_seed(seed)
        shapes = [self.input, self.weight, *([(self.bias_size,)] if self.bias else [])]
        made = [torch.randn(s, dtype=torch.float64).to(device, dtype) for s in shapes]
        return [t.requires_grad_() for t in made] + [None] * (3 - len(made))

    def ours(self, x: Any, w: Any, b: Any) -> torch.Tensor:
        if self.transposed and self.rank == 3:
            return rt.conv_transpose3d(
                x, w, b, self.stride, self.padding, self.output_padding, self.groups, self.dilation
            )
        if self.transposed:
            return rt.convolution_transpose(
                x, w, b, self.stride, self.padding, self.output_padding, self.dilation, self.groups
            )
        convolution = rt.convolution if self.rank == 2 else rt.conv3d
        return convolution(x, w, b, self.stride, self.padding, self.dilation, self.groups)

    def theirs(self, x: Any, w: Any, b: Any) -> torch.Tensor:
        """PyTorch's: lopsided padding is an explicit pad, or a crop of the result."""
        rank = self.rank
        convolution = getattr(F, f"conv{rank}d")
        transposed = getattr(F, f"conv_transpose{rank}d")
        before, after = self.padding[:rank], self.padding[rank:]
        if not after:
            if self.transposed:
                return transposed(
                    x, w, b, self.stride, self.padding, self.output_padding, self.groups,
                    self.dilation,
                )  # fmt: skip
            return convolution(x, w, b, self.stride, self.padding, self.dilation, self.groups)
        if not self.transposed:
            ends = zip(reversed(before), reversed(after), strict=True)
            x = F.pad(x, [width for end in ends for width in end])
            return convolution(x, w, b, self.stride, 0, self.dilation, self.groups)
        out = transposed(x, w, b, self.stride, 0, self.output_padding, self.groups, self.dilation)
        for i, (first, last) in enumerate(zip(before, after, strict=True), 2):
            out = out.narrow(i, first, out.shape[i] - first - last)
        return out


def random_config(rng: np.random.Generator, rank: int = 2) -> Config:
    """Groups, depthwise, dilation, strides beyond the kernel, lopsided padding, 1x1, one image."""

    def pick(*values: int) -> int:
        return int(values[int(rng.integers(len(values)))])

    groups = pick(1, 1, 1, 2, 3)
    c, k = groups * pick(1, 2, 3), groups * pick(1, 2)
    if rng.random() < 0.2:  # depthwise, perhaps with a multiplier
        groups = c = pick(2, 3, 4)
        k = c * pick(1, 2)

    def picks(*choices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(pick(*values) for values in choices[: rank - 2] + choices)

    kernel = (1,) * rank if rng.random() < 0.2 else picks((1, 2, 3, 4), (1, 2, 3, 5))
    stride, dilation = picks((1, 1, 2, 3), (1, 2, 2, 3)), picks((1, 1, 2), (1, 1, 3))
    reach = [d * (r - 1) for d, r in zip(dilation, kernel, strict=True)]
    padding = tuple(pick(*range(r // 2 + 2)) for r in reach)
    if rng.random() < 0.3:
        padding = (*padding, *(pick(*range(r + 2)) for r in reach))
    size = [
        max(1, reach[i] + 1 - padding[i] - padding[i - rank]) + pick(0, 1, 2, 3, 4)
        for i in range(rank)
    ]
    return Config(
        False, (pick(1, 1, 2, 3), c, *size), (k, c // groups, *kernel), stride, padding,
        (0,) * rank, dilation, groups, bool(rng.random() < 0.5),
    )  # fmt: skip


def gradients(function: Any, operands: list[Any], seed: int) -> list[torch.Tensor]:
    """The result, and the gradients of its product with a random tensor."""
    out = function(*operands)
    torch.manual_seed(seed)
    v = torch.randn(out.shape, dtype=torch.float64).to(out.device, out.dtype)
    wanted = [t for t in operands if t is not None and t.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, wanted, v)]


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Norm of the difference over the norm of `want`."""
    assert got.shape == want.shape, f"{tuple(got.shape)} is not {tuple(want.shape)}"
    got, want = got.detach().double(), want.detach().double()
    difference = (got - want).norm()
    return float(difference / want.norm()) if want.any() else float(difference)
