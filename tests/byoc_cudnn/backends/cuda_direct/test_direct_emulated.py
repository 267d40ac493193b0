"""What our own convolution kernels compute, on a device that is the CPU, against PyTorch's."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_wgrad.problem import ConvProblem
from tests.support.direct_emulated import kernels, share

NHWC, NCHW = "layout=NHWC/OHWI/NHWC", "layout=NCHW/OIHW/NCHW"
# Lines of `ConvProblem.parse` after `.format(kind)`; the epilogue of fprop and dgrad.
CASES = (
    (f"{{}} n=2 c=5 h=7 w=6 k=10 r=3 s=2 stride=2,1 pad=1,0,2,1 groups=5 {NHWC}", "bias_relu"),
    (f"{{}} n=1 c=3 h=6 w=7 k=3 r=2 s=3 dil=2,1 pad=0,1,1,2 groups=3 {NCHW}", "residual_relu"),
    (f"{{}} n=2 c=24 h=9 w=8 k=24 r=3 s=3 pad=1,1,1,1 groups=24 {NHWC} dtype=f16/f16/f16", "bias"),
    (f"{{}} n=1 c=8 h=11 w=9 k=8 r=5 s=3 stride=2,3 pad=1,2,3,0 groups=8 {NHWC}", "residual"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize(("line", "name"), CASES)
def test_what_the_first_choice_computes(folder: Path, line: str, name: str, kind: str) -> None:
    problem = ConvProblem.parse(line.format(kind))
    epilogue = tuple(name.split("_")) if kind != "wgrad" else ()
    kernel = kernels(problem, epilogue)[0]
    assert share(folder, kernel, problem, epilogue) <= 1, kernel.name
