"""What our own convolution kernels compute, on a device that is the CPU, against PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

from relay_wgrad.problem import ConvProblem
from tests.support.depthwise_cases import SMALL
from tests.support.direct_emulated import library, share, some


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
