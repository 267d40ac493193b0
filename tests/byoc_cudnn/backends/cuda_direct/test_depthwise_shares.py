"""Depthwise kernels in equal shares: parts of tiles, what is no number, what they are not for."""

from __future__ import annotations

from pathlib import Path

import pytest

from byoc_cudnn.backends.cuda_direct import depthwise_shares
from byoc_cudnn.backends.cuda_direct.kernels import Kernel
from byoc_cudnn.backends.cuda_direct.model import ranked
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.direct_emulated import run, share
from tests.support.special_values import wrong
from tests.support.warps_emulated import together

# Three tiles for six blocks: each has half an image's rows, or a part of two images'.
LINES = (
    "n=24 c=16 h=12 w=9 k=16 r=3 s=3 pad=1,1,1,1 groups=16",
    "n=20 c=24 h=7 w=7 k=24 r=5 s=5 pad=2,2,2,2 groups=24",
    "n=3 c=8 h=6 w=10 k=8 r=5 s=5 pad=2,2,2,2 groups=8",
    "n=3 c=8 h=9 w=30 k=8 r=7 s=3 pad=0,6,3,0 groups=8",
)


def _problem(kind: ConvKind, line: str) -> ConvProblem:
    return ConvProblem.parse(f"{kind.value} {line} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16")


def _kernel(problem: ConvProblem) -> Kernel:
    kernels = [choice.kernel for choice in ranked(problem, (), 90)]
    return next(kernel for kernel in kernels if kernel.family == depthwise_shares.FAMILY.name)


@pytest.mark.longer("by g++; kernels of other families stay")
@pytest.mark.parametrize("kind", list(ConvKind))
def test_parts_of_tiles_and_what_is_no_number(kind: ConvKind, tmp_path: Path) -> None:
    problems = [_problem(kind, line) for line in LINES]
    cases = [(problem, _kernel(problem)) for problem in problems]
    library = together(tmp_path, [kernel for _, kernel in cases])
    for problem, kernel in cases:
        assert share(library, kernel, problem) <= 1, kernel.name
        if problem.n == 3:
            found = wrong(problem, lambda given, k=kernel, p=problem: run(library, k, p, given))
            assert found == [], kernel.name


def test_a_share_is_whole_tiles_or_less() -> None:
    # 22 blocks for 16 tiles of 28 rows: 21 rows and six of others; for 16 blocks a tile each.
    assert depthwise_shares.share(16, 28, 6, 1, 6, 3) == 21
    assert depthwise_shares.share(16, 28, 8, 1, 6, 3) == 28
    assert depthwise_shares.share(8, 14, 21, 1, 4, 2) == 19


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n=1 c=8 h=9 w=9 k=8 r=3 s=3 stride=2,2 groups=8", "strides=(2, 2): rows are in equal"),
        ("n=1 c=8 h=9 w=9 k=8 r=3 s=3 pad=3,0,0,0 groups=8", "padding=(3, 0, 0, 0) of 3 rows"),
    ],
)
def test_refusals(line: str, reason: str) -> None:
    decision = depthwise_shares.FAMILY.accepts(_problem(ConvKind.FPROP, line), "")
    assert not decision
    assert reason in decision.reason


def test_what_they_are_chosen_for() -> None:
    """Weight gradients, and results of 7x7; of 3x3 whole rows and threads' strips are faster."""
    seven, three = "h=56 w=56 k=96 r=7 s=7 pad=3,3,3,3", "h=56 w=56 k=96 r=3 s=3 pad=1,1,1,1"
    for kind, sizes, taken in (
        (ConvKind.WGRAD, seven, True), (ConvKind.FPROP, seven, True),
        (ConvKind.DGRAD, seven, True), (ConvKind.FPROP, three, False),
    ):  # fmt: skip
        first = ranked(_problem(kind, f"n=64 c=96 {sizes} groups=96"), (), 90)[0].kernel
        assert (first.family == depthwise_shares.FAMILY.name) is taken
