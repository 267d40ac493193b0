"""The share of the transforms' generator that every test run pays for."""

from __future__ import annotations

from . import transforms
from .harness import failures

SHARE = 16


def test_share() -> None:
    """Of those that compile nothing, neither kernels nor graphs."""
    cases = (transforms.case(1, index) for index in range(10 * SHARE))
    cheap = [
        i
        for i, line in enumerate(cases)
        if "kernels=numpy" in line and "eager" not in line and "hessian" not in line
    ]
    assert not failures(transforms.GENERATOR, cheap[:SHARE], seed=1)


def test_original_fault_is_a_case() -> None:
    """A forward-mode level below one that records: its tangents were zeros."""
    line = (
        "function={} transforms=grad0.jvp1 n=1 c=2 k=2 groups=1 h=3 w=3 r=2 s=2 stride=1,1"
        " padding=0,1 dilation=1,1 extra=0,0 bias=1 last=0 kernels=numpy seed=1"
    )
    for function in transforms.FUNCTIONS:
        assert transforms.check(line.format(function)) is None


def test_a_trace_within_a_trace_of_other_symbols() -> None:
    """Asking for a memory order was a step of the inner trace, which knows no such size."""
    line = (
        "function=transpose transforms=make_fx0.dual1.symbolic1.functional1 n=1 c=1 k=2 groups=1"
        " h=1 w=2 r=3 s=2 stride=2,2 padding=1,0 dilation=1,1 extra=0,1 bias=1 last=0"
        " kernels=numpy seed=975"
    )
    assert transforms.check(line) is None
