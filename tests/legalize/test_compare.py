"""The second opinions that `train` has of each kernel: they agree, or they tell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import tvm

from legalize import compare, cpu, sampled
from relay_wgrad.layouts import permutation
from relay_wgrad.operands import random_operands
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.fast import FAST

LINES = (
    "{} n=2 c=3 h=5 w=6 k=4 r=3 s=2 stride=2,1 pad=1,0,1,1",
    "{} n=2 c=4 h=5 w=6 k=4 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC",
)
PARTS = ("data", "weight", "grad")
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
        opinion = compare.by_composite(problem, made[f"f{i}"], stock, i, 1)
        assert opinion.error < 1e-5, problem
        assert opinion.problem == problem
        assert opinion.seconds > 0
        assert opinion.stock_seconds > 0


WIDE = (
    "{} n=2 c=4 h=5 w=6 k=6 r=3 s=2 stride=2,1 pad=1,0,2,1 dil=1,2 groups=2 dtype=f64/f64/f64",
    "{} n=1 c=3 h=7 w=5 k=3 r=3 s=3 stride=2,2 groups=3 layout=NHWC/HWIO/NHWC dtype=f64/f64/f64",
    "{} n=1 c=2 d=4 h=3 w=5 k=4 t=2 r=1 s=3 pad=1,0,1,0,0,2 dtype=f64/f64/f64",
)


@pytest.mark.parametrize("line", WIDE)
@pytest.mark.parametrize("kind", ConvKind)
def test_rows_are_those_of_the_result(line: str, kind: ConvKind) -> None:
    """Beside PyTorch, all of them: each has a tap, a stride, a dilation or a group to get wrong."""
    problem = ConvProblem.parse(line.format(kind.value))
    rng = np.random.default_rng(0)
    given = random_operands(problem, rng)
    whole = by_torch(problem, given)
    got, want = sampled.rows(problem, given, whole, rng)
    assert got.size == min(whole.size, sampled.ROWS * got.shape[1])
    np.testing.assert_allclose(want, got, rtol=1e-12, atol=1e-12)


def by_torch(problem: ConvProblem, given: Any) -> Any:
    """The whole result, in its layout."""
    first, second, result = problem.roles
    order = {role: permutation(problem.layout(role), problem.canonical(role)) for role in PARTS}
    named = {
        role: torch.from_numpy(x.transpose(order[role]))
        for role, x in zip((first, second), given, strict=True)
    }
    zeros = {r: torch.zeros(problem.canonical_shape(r), dtype=torch.float64) for r in PARTS}
    data, weight = (named.get(r, zeros[r]).requires_grad_() for r in PARTS[:2])
    rank = problem.rank
    pads = [
        x for i in reversed(range(rank)) for x in (problem.padding[i], problem.padding[rank + i])
    ]
    run = torch.nn.functional.conv3d if rank == 3 else torch.nn.functional.conv2d
    y = run(torch.nn.functional.pad(data, pads), weight, stride=problem.strides,
            dilation=problem.dilation, groups=problem.groups)  # fmt: skip
    if problem.kind is not ConvKind.FPROP:
        (y,) = torch.autograd.grad(y, data if result == "data" else weight, named["grad"])
    return y.detach().numpy().transpose(np.argsort(order[result]))


def test_ours_agree_in_some_rows() -> None:
    made = kernels()
    for i, problem in enumerate(PROBLEMS):
        opinion = compare.by_rows(problem, made[f"f{i}"], i)
        assert opinion.error < 1e-5, problem
        assert math.isnan(opinion.stock_seconds)
    left = compare.by_rows(PROBLEMS[0], lambda *_: None, 0)
    assert math.isnan(left.error)

    def doubled(a: Any, b: Any, out: Any) -> None:
        made["f1"](a, b, out)
        out.copyfrom(2 * out.numpy())

    assert compare.by_rows(PROBLEMS[1], doubled, 1).error == pytest.approx(1)


def test_another_result_is_told(stock: Any) -> None:
    """One that writes nothing leaves NaN, and zeros are all wrong."""
    assert math.isnan(compare.by_composite(PROBLEMS[0], lambda *_: None, stock, 0, 1).error)

    def zeros(a: Any, b: Any, out: Any) -> None:
        out.copyfrom(np.zeros_like(out.numpy()))

    assert compare.by_composite(PROBLEMS[1], zeros, stock, 1, 1).error == pytest.approx(1)
