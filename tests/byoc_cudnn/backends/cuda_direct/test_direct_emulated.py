"""What our own convolution kernels compute, on a device that is the CPU, against PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from byoc_cudnn.backends.cuda_direct.depthwise import strip_of
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.depthwise_cases import SMALL
from tests.support.direct_emulated import library, share, some, workspace


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    kernels = dict.fromkeys(kernel for case in SMALL for kernel in some(*case))
    return library(tmp_path_factory.mktemp("kernels"), *kernels)


@pytest.mark.parametrize(("problem", "epilogue"), SMALL, ids=str)
def test_what_kernels_compute(
    functions: Any, problem: ConvProblem, epilogue: tuple[str, ...]
) -> None:
    for kernel in some(problem, epilogue):
        assert share(functions, kernel, problem, epilogue) <= 1, kernel.name


def test_the_model_cuts_as_the_kernels_do(functions: Any) -> None:
    """How a problem is cut into strips, chunks and blocks is written down twice."""
    for problem, epilogue in SMALL:
        if problem.kind is not ConvKind.WGRAD:
            continue
        for kernel in some(problem, epilogue):
            for n, h, w in ((1, 5, 9), (3, 31, 40), (64, 56, 56), (256, 14, 14)):
                p = replace(problem, n=n, h=h, w=w)
                if kernel.family == "depthwise_sums":
                    strip = strip_of(p, kernel.numbers)
                    slabs = strip.work().blocks // strip.cover[2]
                    want = 4 * slabs * p.r * p.s * p.c
                    assert workspace(functions, kernel, p) == want, f"{kernel.name} {p}"
