"""What our own convolution kernels compute, on a device that is the CPU, against PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

from relay_wgrad.problem import ConvProblem
from tests.support.direct_emulated import library, share, some

NHWC, NCHW = "layout=NHWC/OHWI/NHWC", "layout=NCHW/OIHW/NCHW"
# Lines of `ConvProblem.parse` after `.format(kind)`; the epilogue of fprop and dgrad.
CASES = (
    (f"{{}} n=1 c=5 h=5 w=4 k=10 r=3 s=2 stride=2,1 pad=1,0,2,1 groups=5 {NHWC}", "bias_relu"),
    (f"{{}} n=1 c=3 h=6 w=5 k=3 r=2 s=3 dil=2,1 pad=0,1,1,2 groups=3 {NCHW}", "residual_relu"),
    (f"{{}} n=2 c=24 h=5 w=6 k=24 r=3 s=3 pad=1,1,1,1 groups=24 {NHWC} dtype=f16/f16/f16", "bias"),
    (f"{{}} n=1 c=6 h=9 w=7 k=6 r=5 s=3 stride=2,3 pad=1,2,3,0 groups=6 {NHWC}", "residual"),
    (f"{{}} n=1 c=3 h=4 w=9 k=3 r=3 s=3 pad=1,1,1,1 groups=3 {NHWC} dtype=bf16/bf16/bf16", ""),
)
KINDS = ("fprop", "dgrad", "wgrad")
ALL = [(line, "" if kind == "wgrad" else name, kind) for line, name in CASES for kind in KINDS]
# An operand of half precision that is copied in less than 4 bytes, which no copy is; a wide result.
ALL.append((f"{{}} n=1 c=1 h=4 w=9 k=1 r=3 s=3 groups=1 {NHWC} dtype=f32/bf16/bf16", "", "dgrad"))


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    kernels = dict.fromkeys(k for case in ALL for k in some(*_parsed(*case)))
    return library(tmp_path_factory.mktemp("kernels"), *kernels)


def _parsed(line: str, name: str, kind: str) -> tuple[ConvProblem, tuple[str, ...]]:
    return ConvProblem.parse(line.format(kind)), tuple(word for word in name.split("_") if word)


@pytest.mark.parametrize(("line", "name", "kind"), ALL)
def test_what_kernels_compute(functions: Any, line: str, name: str, kind: str) -> None:
    problem, epilogue = _parsed(line, name, kind)
    for kernel in some(problem, epilogue):
        assert share(functions, kernel, problem, epilogue) <= 1, kernel.name
