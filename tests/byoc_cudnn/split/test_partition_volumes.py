"""Convolutions of three dimensions in a partition: to cuDNN alone, with what is put around them;
the other backends refuse them with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import byoc_cudnn
from byoc_cudnn.backends.cudnn.check import VOLUME_LAYOUTS, check
from byoc_cudnn.split.adapt import describe
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.partition_cases import (
    bias,
    composites,
    module,
    nn,
    only,
    ops,
    partitioned,
    problem_module,
    same_numbers,
)
from tests.support.problems import random_problem

KINDS = list(ConvKind)


@pytest.fixture(autouse=True)
def _registered(registered: None) -> None:
    """All of this needs the package's operators."""


# problem -> part of the reason, None where it is accepted
PROBLEMS = {
    "fprop n=1 c=4 d=4 h=4 w=4 k=4 t=3 r=3 s=3": None,
    "dgrad n=1 c=4 d=9 h=9 w=9 k=8 t=3 r=3 s=3 stride=3,2,1 dil=1,2,3 groups=2"
    " layout=NDHWC/ODHWI/NDHWC dtype=f16/f16/f16": None,
    "wgrad n=1 c=4 d=4 h=4 w=4 k=4 t=3 r=3 s=3 layout=NCDHW/OIDHW/NDHWC": "cuDNN has NCDHW/OIDHW",
    "wgrad n=1 c=4 d=4 h=4 w=4 k=4 t=3 r=3 s=3 pad=1,0,0,0,0,0": "asymmetric padding (before, ",
    "fprop n=1 c=4 d=4 h=4 w=4 k=4 t=3 r=3 s=3 dtype=f64/f64/f64": "dtype float64",
}


@pytest.mark.parametrize("line", PROBLEMS)
def test_problem(line: str) -> None:
    decision, reason = check(ConvProblem.parse(line), ""), PROBLEMS[line]
    assert decision.ok is (reason is None)
    assert (reason or "") in decision.reason


@pytest.mark.parametrize("kind", KINDS)
def test_any_layout_and_padding_goes(kind: ConvKind) -> None:
    """And what is put around it changes no number."""
    rng = np.random.default_rng(8)
    for number in range(2):
        problem = random_problem(
            rng, kind, max_flop=2e5, dtypes=("float32",), mixed=False, rank=3
        )  # fmt: skip
        mod = problem_module(problem)
        out, report = partitioned(mod, strict=True)
        entry = only(report)
        (made,) = (ConvProblem.parse(str(f.attrs["relay_wgrad.problem"])) for f in composites(out))
        assert entry.backend == "cudnn"
        assert check(made, "")
        assert entry.adapted == describe(problem, made)
        if number == 0:
            same_numbers(mod, out)


@pytest.mark.parametrize("backend", ["cutlass", "cuda_direct"])
@pytest.mark.parametrize("kind", KINDS)
def test_others_refuse(kind: ConvKind, backend: str) -> None:
    layout = "/".join(VOLUME_LAYOUTS[1])
    line = f"{kind.value} n=1 c=8 d=4 h=4 w=4 k=8 t=3 r=3 s=3 layout={layout}"
    mod = problem_module(ConvProblem.parse(line))
    _, report = byoc_cudnn.partition(mod, (backend,))
    assert only(report).backend == ""
    words = {
        "cutlass": "the kernels here are of two",
        "cuda_direct": "kernels of grouped are of two",
    }
    assert f"three dimensions: {words[backend]}" in only(report).reason
    _, report = byoc_cudnn.partition(mod, (backend, "cudnn"))
    assert only(report).backend == "cudnn"


def test_a_transposed_convolution_goes() -> None:
    def body(emit: Any, g: Any, w: Any) -> Any:
        return emit(nn.conv3d_transpose(g, w, (2, 1, 1), (1, 0, 0, 0, 0, 0), (1, 0, 0)))

    mod = module({"g": (2, 4, 3, 4, 5), "w": (4, 3, 3, 2, 2)}, body)
    out, report = partitioned(mod, strict=True)
    assert (only(report).row, only(report).adapted) == ("dgrad", "crop")
    same_numbers(mod, out)


def test_what_follows_stays() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return emit(nn.relu(bias(emit, emit(nn.conv3d(x, w)), b)))

    mod = module({"x": (2, 4, 5, 6, 7), "w": (8, 4, 3, 3, 3), "b": (1, 8, 1, 1, 1)}, body)
    out, report = partitioned(mod, strict=True)
    assert only(report).row == "fprop"
    assert ops(out["main"]) == ["call", "add", "relu"]
    assert all("in three dimensions: none was tried" in why for _, why in only(report).tried)
    assert len(only(report).tried) == 2
