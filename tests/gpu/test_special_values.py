"""Infinities, NaN, large numbers through CUDA's kernels: docs/reference/operators.md's promise."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from legalize.cuda import prim_func
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gpu.runner import choose_compiler
from tests.support.problems import poisoned, random_problem
from tests.support.special_values import wrong

pytestmark = pytest.mark.gpu
RANDOM = 12  # problems of each kind
STRIDED = "dgrad n=1 c=17 h=7 w=6 k=4 r=3 s=3 stride=2,2 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"


def _problems(kind: ConvKind) -> list[ConvProblem]:
    rng = np.random.default_rng(list(ConvKind).index(kind))
    drawn = [random_problem(rng, kind, max_flop=1e6) for _ in range(RANDOM)]
    return [*drawn, ConvProblem.parse(STRIDED).with_kind(kind)]


@pytest.mark.parametrize("kind", list(ConvKind))
def test_special_values(kind: ConvKind) -> None:
    device = tvm.cuda(0)
    assert device.exist
    choose_compiler()
    target = tvm.target.Target.from_device(device)
    found = []
    for problem in _problems(kind):
        func = prim_func(problem, target).with_attr("global_symbol", "main")
        kernel = tvm.compile(tvm.IRModule({"main": func}), target=target)["main"]

        def run(
            operands: list[np.ndarray], kernel: object = kernel, problem: ConvProblem = problem
        ) -> np.ndarray:
            out = tvm.runtime.tensor(poisoned(problem), device)
            kernel(*[tvm.runtime.tensor(x, device) for x in operands], out)
            return out.numpy()

        found += wrong(problem, run)
    assert found == []
