"""What our own convolution kernels compute, on a device that is the CPU, against PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from byoc_cudnn.backends.cuda_direct.depthwise import strip_of
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.depthwise_cases import SMALL
from tests.support.direct_emulated import library, run, share, some, workspace

POINTWISE = ConvProblem.parse(
    "fprop n=3 c=2 h=3 w=3 k=2 r=1 s=1 groups=2 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
)
ACTIVATIONS = ("relu", "relu6", "silu")


@pytest.fixture(scope="module")
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of the cases that this run has, and of gradients, of all of which workspaces are asked."""
    items = [item for item in request.session.items if item.path == request.path]
    wanted = [i.callspec.params.get("problem") for i in items if hasattr(i, "callspec")]
    cases = [c for c in SMALL if c[0] in wanted or c[0].kind is ConvKind.WGRAD]
    cases += [(POINTWISE, (name,)) for name in ACTIVATIONS]
    kernels = dict.fromkeys(kernel for case in cases for kernel in some(*case))
    return library(tmp_path_factory.mktemp("kernels"), *kernels)


@pytest.mark.share(3)
@pytest.mark.longer_cases("wgrad n=1 c=103", why="large blocks")
@pytest.mark.parametrize(("problem", "epilogue"), SMALL, ids=str)
def test_what_kernels_compute(
    functions: Any, problem: ConvProblem, epilogue: tuple[str, ...]
) -> None:
    for kernel in some(problem, epilogue):
        assert share(functions, kernel, problem, epilogue) <= 1, kernel.name


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_and_large_numbers_pass(functions: Any, name: str) -> None:
    """One image's data is NaN, the others' sums are large; half holds them."""
    data = np.empty(POINTWISE.shape("data"), np.float16)
    data[0], data[1], data[2] = np.nan, 2000, -2000
    weight = np.ones(POINTWISE.shape("weight"), np.float16)
    for kernel in some(POINTWISE, (name,)):
        out = run(functions, kernel, POINTWISE, [data, weight])
        assert np.isnan(out[0]).all()
        assert (out[1] == (6 if name == "relu6" else 2000)).all()
        assert (out[2] == 0).all()


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
