"""Infinities, NaN, the largest numbers: what docs/reference/operators.md promises of kernels."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from legalize import cpu
from legalize.cpu.machine import machine
from legalize.cpu.winograd import algorithm as winograd
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.fuzz.special import FAMILIES, GENERATOR, kernel, runner
from tests.support.special_values import SLIDING, by_taps, canonical, cases, wrong

LINES = (
    "n=2 c=5 h=9 w=8 k=18 r=3 s=2 stride=2,3 pad=1,0,2,1 dil=2,1 dtype=f16/f16/f16",
    "n=1 c=17 h=7 w=6 k=4 r=3 s=3 stride=2,2 layout=NHWC/OHWI/NHWC",
    "n=2 c=6 h=8 w=7 k=6 r=3 s=3 stride=2,1 pad=1,1,1,1 groups=6 dtype=bf16/bf16/bf16",
)


@pytest.mark.share(4)
@pytest.mark.parametrize("kind", list(ConvKind))
@pytest.mark.parametrize("family", FAMILIES)
def test_special_values_stay_where_taps_are(family: str, kind: ConvKind) -> None:
    """Nothing between strides is multiplied; padding is zeros, which an infinite weight meets."""
    number = FAMILIES.index(family) + list(ConvKind).index(kind)
    lines = LINES if family == "cuda" and kind is ConvKind.DGRAD else [LINES[number % len(LINES)]]
    for line in lines:
        problem = ConvProblem.parse(f"{kind.value} {line}")
        assert wrong(problem, runner(kernel(family, problem), problem)) == []


def test_the_reference() -> None:
    """PyTorch's float64 gradients have infinities where ours without padding's zeros has them."""
    import torch

    problem = ConvProblem.parse(f"dgrad {LINES[0].replace('f16', 'f64')}")
    for role, special, operands in cases(problem, 0):
        if special == "max":
            continue
        with np.errstate(all="ignore"):
            got = by_taps(problem, *operands, padded=False)
        top, left, bottom, right = problem.padding
        x = torch.zeros(2, 5, 9 + top + bottom, 8 + left + right, dtype=torch.float64)
        want = torch.nn.grad.conv2d_input(
            x.shape, torch.tensor(operands[1]), torch.tensor(operands[0]), problem.strides, 0,
            problem.dilation,
        )[:, :, top : top + 9, left : left + 8]  # fmt: skip
        np.testing.assert_allclose(got, want, err_msg=f"{role} {special}")


@pytest.mark.parametrize("kind", list(ConvKind))
def test_winograd_spreads_over_its_tiles_and_hides_nothing(kind: ConvKind) -> None:
    """A value that is not finite may make results of its 4x4 tiles NaN, and no others."""
    target = cpu.host_target(allow_winograd=True)
    problem = ConvProblem.parse(f"{kind.value} n=1 c=64 h=24 w=24 k=64 r=3 s=3 pad=1,1,1,1")
    if not winograd.pays(problem, machine(target), False):
        pytest.skip("this CPU's direct kernel is taken")
    run = runner(tvm.compile(cpu.prim_func(problem, target), target=target)["main"], problem)
    for role, special, operands in cases(problem, 0):
        if special == "max" or role != SLIDING[kind]:
            continue
        got = run(operands)
        with np.errstate(all="ignore"):
            exact = by_taps(
                problem, *(canonical(problem, r, x.astype("float64"))
                           for r, x in zip(problem.roles, operands, strict=False)), padded=False,
            )  # fmt: skip
        bad = ~np.isfinite(exact)
        assert not np.isfinite(got[bad]).any()
        if kind is ConvKind.WGRAD:
            continue
        tiles = bad.reshape(1, 64, 6, 4, 6, 4).any((3, 5))
        whole = np.repeat(np.repeat(tiles, 4, 2), 4, 3)
        assert np.isfinite(got[~whole]).all()


def test_the_generators_cases_are_named_by_their_lines() -> None:
    line = GENERATOR.case(0, 3)
    assert line == GENERATOR.case(0, 3)
    assert set(GENERATOR.labels(line)) == {"family", "kind", "dtype"}
