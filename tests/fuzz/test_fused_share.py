"""A share of the generator `fused`, and what it has found."""

import pytest

from .fused import GENERATOR, check
from .harness import failures


def test_share() -> None:
    assert not failures(GENERATOR, range(9))


@pytest.mark.parametrize(
    "line",
    [
        # A name's value by a function of C: of a vector of sums all had the last one's term.
        "ours 400x400 float32 530: erf 1 | pair 2 0 01",
        "ours 400x400 bfloat16 530: erf 1 | pair 2 0 01",
        "ours 4x31x29x48 float16 530: erf 1 | pair 2 0 012",
        # A first value of bfloat16 as a vector.
        "ours 2x14x31x24 bfloat16 35: most 0 3 NHWC",
        "ours? 2x14x31x24 bfloat16 35: multiply 0 1 | most 2 3 NHWC",
        "ours 7x37 bfloat16 1: multiply 0 1 | max 2 1 drop | argmin 2 0",
        # Places by i % 4 in two operands: LLVM's vectors read beyond a turn.
        "ours 2x8x8x48 float32 3: half 1 | mean 1 012 keep | add 0 3 | shuffle 4 4 3",
    ],
)
def test_found(line: str) -> None:
    assert not check(line)
