"""A share of the generator `jax_convolutions`, and a fault in each rule that it finds."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from relay_wgrad.jax import family, primitive

from .harness import failures
from .jax_convolutions import GENERATOR

# One of each way; of an odd size, so that a fault shows.
LINE = (
    "way={} n=2 c=4 k=6 pixels=5,7 taps=3,2 stride=2,1 pad=1,0,0,1 lhs=1,1 rhs=1,2 groups=2"
    " images=1 specs=0,1,2,3/0,1,2,3/0,1,2,3 seed=5"
)


@pytest.mark.longer_cases("rest")
@pytest.mark.parametrize("seeds", [range(4), range(4, 60)], ids=["first", "rest"])
def test_share(seeds: range) -> None:
    assert not failures(GENERATOR, seeds)


@pytest.mark.parametrize("way", ["value", "vjp", "vmap-rhs", "vmap-both", "of-grad"])
def test_a_fault_in_each_rule_is_found(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = LINE.format(way)
    assert GENERATOR.answer(line)["status"] == "passed"
    if way == "vjp":  # a gradient of the wrong operand
        kinds = dict(primitive.OF_RESULT)
        monkeypatch.setattr(primitive, "OF_RESULT", {**kinds, "weight": kinds["data"]})
    elif way.startswith("vmap"):  # groups in the wrong places
        monkeypatch.setattr(primitive, "GROUPED", {"data": "C", "weight": "I", "grad": "C"})
    else:  # an operand that is not what was given
        made = primitive.convolution
        monkeypatch.setattr(family, "convolution", lambda a, *rest: made(a * 1.001, *rest))
    assert GENERATOR.answer(line)["status"] == "failed"
