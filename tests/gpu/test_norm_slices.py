"""Normalizations whose gradients are channels of others, on a GPU, beside those of copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from byoc_cudnn.norm import NormCall, check
from tests.support.gpu.norm_runner import load

pytestmark = pytest.mark.gpu

CASES: list[tuple[str, str, tuple[int, ...], int, tuple[tuple[int, int], ...]]] = [
    ("float16", "relu", (64, 28, 28, 160), 0, ((32, 1056), (0, 160))),
    ("float16", "relu", (64, 14, 14, 104), 0, ((104, 416),)),  # rows side by side
    ("float16", "relu", (8, 7, 7, 208), 0, ((208, 832), (0, 208))),  # one launch
    ("bfloat16", "", (16, 56, 56, 24), 0, ((0, 48),)),
    ("bfloat16", "silu", (4, 33, 9, 64), 4, ((64, 128), (8, 72))),
    ("float32", "relu", (5, 19, 12), 0, ((4, 16), (12, 24))),
    ("float16", "relu", (6, 31, 26), 0, ((26, 104), (0, 26))),  # no whole packs
]


def call_of(case: int, direction: str, sliced: bool = False) -> NormCall:
    dtype, activation, _, groups, slices = CASES[case]
    call = NormCall(f"{direction}_{case}", direction, dtype, activation, grouped=groups > 0)
    if not sliced:
        return call
    return replace(call, symbol=f"sliced_{case}", slices=slices, summed=len(slices) > 1)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    calls = [
        call_of(case, direction, sliced)
        for case in range(len(CASES))
        for direction, sliced in (("forward", False), ("backward", False), ("backward", True))
    ]
    assert all(map(check, calls))
    return load(calls, tmp_path_factory.mktemp("norm"))


@pytest.mark.parametrize("case", range(len(CASES)))
def test_bits_of_a_copy(functions: Any, case: int) -> None:
    dtype, _, shape, groups, slices = CASES[case]
    kind, generator = getattr(torch, dtype), torch.Generator("cuda").manual_seed(case)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda", generator=generator)

    width, few = shape[-1], (shape[0], groups) if groups else shape[-1:]
    x, gamma, beta = random(*shape).to(kind), random(width), random(width)
    y, mean, rstd = torch.empty_like(x), random(*few), random(*few)
    functions[f"forward_{case}"](x, gamma, beta, y, mean, rstd)
    wide = [random(*shape[:-1], n).to(kind) for _, n in slices]
    parts = [t[..., first : first + width] for t, (first, _) in zip(wide, slices, strict=True)]
    total = parts[0] + parts[1] if len(parts) > 1 else parts[0].contiguous()
    given, found = [x, gamma, beta, mean, rstd], []
    for name, gradients in (("backward", [total]), ("sliced", wide)):
        results = [torch.full_like(t, torch.nan) for t in (x, gamma, beta)]
        functions[f"{name}_{case}"](*gradients, *given, *results)
        found.append(results)
    bytes_of = x.element_size()
    whole = all(n * bytes_of % 16 == 0 for n in (width, *sum(slices, ())))
    for ours, copied in zip(*found, strict=True):
        if whole:
            assert torch.equal(ours.view(torch.uint8), copied.view(torch.uint8))
        else:  # rows are not side by side: sums have another order
            assert torch.allclose(ours.double(), copied.double(), rtol=1e-3, atol=1e-3)
