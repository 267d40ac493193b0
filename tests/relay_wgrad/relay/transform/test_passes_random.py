"""Passes change no number: random programs, evaluated without a compiler before and after."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.testing import count_ops
from tests.support.relay import parallel_programs, simple_programs
from tests.support.relay.evaluate import evaluate
from tests.support.relay.layout_programs import arrays, program
from tests.support.relay.unchanged import flat

PASSES: dict[str, Callable[[], T.Pass]] = {
    "SimplifyExpr": T.SimplifyExpr,
    "CanonicalizeCast": T.CanonicalizeCast,
    "DivToMul": T.DivToMul,
    "LazyGradientInit": T.LazyGradientInit,
    "FuseOps": lambda: T.FuseOps(2),
    "FuseOps and DefuseOps": lambda: T.Sequential([T.FuseOps(2), T.DefuseOps()]),
}


@pytest.mark.parametrize("name", PASSES)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_a_pass_changes_no_number(name: str, seed: int, steps: int) -> None:
    """`layout_programs.program(seed, steps)` is what failed."""
    unchanged(program(seed, steps), PASSES[name]())


def unchanged(mod: relay.IRModule, change: T.Pass, rtol: float = 1e-9) -> None:
    """The same types and numbers after a pass."""
    with T.PassContext(opt_level=4):
        changed = change(mod)
    assert changed["main"].checked_type == mod["main"].checked_type
    inputs = arrays(mod)
    with np.errstate(all="ignore"):
        want = evaluate(mod["main"], inputs)
        got = evaluate(changed["main"], inputs)
    for ours, theirs in zip(flat(got), flat(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_fused_functions_come_back(seed: int, steps: int) -> None:
    """`DefuseOps` of `FuseOps` is the program itself."""
    mod = program(seed, steps)
    fused = T.FuseOps(2)(mod)
    back = T.DefuseOps()(fused)
    assert relay.structural_equal(back, mod)


COMBINED: dict[str, Callable[[], T.Pass]] = {
    "NCHW": lambda: T.CombineParallelConv2D(2),
    "NHWC": lambda: T.CombineParallelConv2D(2),
    "dense": lambda: T.CombineParallelDense(2, to_batch=False),
    "dense, stacked": lambda: T.CombineParallelDense(2),
    "dense, as any operator": lambda: T.CombineParallelOpBatch("nn.dense", "nn.batch_matmul", 2),
    "matmul": lambda: T.CombineParallelBatchMatmul(2),
}


@pytest.mark.parametrize("name", COMBINED)
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_combined_branches_change_no_number(name: str, seed: int) -> None:
    """`parallel_programs.program(seed, kind)` is what failed."""
    unchanged(parallel_programs.program(seed, name.split(",")[0]), COMBINED[name]())


@pytest.mark.parametrize("name", COMBINED)
def test_branches_are_combined(name: str) -> None:
    fewer = 0
    for seed in range(20):
        mod = parallel_programs.program(seed, name.split(",")[0])
        op = {"N": "nn.conv2d", "d": "nn.dense", "m": "nn.batch_matmul"}[name[0]]
        after = COMBINED[name]()(mod)
        fewer += count_ops(after["main"])[op] < count_ops(mod["main"])[op]
    assert fewer >= 5


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_simplified_programs_change_no_number(seed: int) -> None:
    """`simple_programs.program(seed)` is what failed."""
    mod = simple_programs.program(seed)
    unchanged(mod, T.SimplifyExpr(), rtol=1e-4)
