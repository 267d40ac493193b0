"""The second opinion that `train` has of each kernel: it agrees, or it tells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm

from legalize import compare, cpu
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.fast import FAST

LINES = (
    "{} n=2 c=3 h=5 w=6 k=4 r=3 s=2 stride=2,1 pad=1,0,1,1",
    "{} n=2 c=4 h=5 w=6 k=4 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC",
)
PROBLEMS = [ConvProblem.parse(line.format(kind.value)) for line in LINES for kind in ConvKind]


@pytest.fixture(scope="module")
def stock() -> Any:
    import relay_wgrad

    was = relay_wgrad.is_registered()
    relay_wgrad.register()
    yield compare.build_stock(PROBLEMS, FAST)
    if not was:
        relay_wgrad.unregister()


def kernels() -> Any:
    target = cpu.host_target(1)
    functions = {
        f"f{i}": cpu.prim_func(p, target).with_attr("global_symbol", f"f{i}")
        for i, p in enumerate(PROBLEMS)
    }
    return tvm.compile(tvm.IRModule(functions), target=target)


def test_ours_agree(stock: Any) -> None:
    made = kernels()
    for i, problem in enumerate(PROBLEMS):
        opinion = compare.second_opinion(problem, made[f"f{i}"], stock, i, 1)
        assert opinion.error < 1e-5, problem
        assert opinion.problem == problem
        assert opinion.seconds > 0
        assert opinion.stock_seconds > 0


def test_another_result_is_told(stock: Any) -> None:
    """One that writes nothing leaves NaN, and zeros are all wrong."""
    assert math.isnan(compare.second_opinion(PROBLEMS[0], lambda *_: None, stock, 0, 1).error)

    def zeros(a: Any, b: Any, out: Any) -> None:
        out.copyfrom(np.zeros_like(out.numpy()))

    assert compare.second_opinion(PROBLEMS[1], zeros, stock, 1, 1).error == pytest.approx(1)
