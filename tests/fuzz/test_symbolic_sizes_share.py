"""A share of the generator `symbolic_sizes`, and faults that it was made for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from . import symbolic_sizes
from .harness import failures
from .symbolic_sizes import GENERATOR, check, wanted

FOUND = [
    # Loops over sizes that are expressions are fused, and a sum of nothing kept what memory held.
    (
        "lang=relax pipe=cpu order=0 dtype=float32 start=image layout=NC dims=var shapes=n,c,w"
        " steps=conv:1:2:2:1:1 end=none sizes=n2,c0,w11 seed=1"
    ),
    # Kernels for any number of images, which copy some at a time, cleared nothing for none.
    (
        "lang=relay pipe=cpu order=1 dtype=float32 start=image layout=NC dims=any shapes=n,4,11"
        " steps=average+conv:1:1:1:2:2 end=sum:1.2:1 sizes=n0 seed=2"
    ),
    # A gradient's first tensor is as large as a result whose size is negative.
    (
        "lang=relay pipe=cpu order=1 dtype=float32 start=image layout=NC dims=var shapes=n,4,9,10"
        " steps=transposed:3:1:2:0 end=none sizes=n0/n1 seed=3"
    ),
    # TVM's pass that makes views of reshapes fails for a size that is `w - 3`.
    (
        "lang=relax pipe=cpu order=1 dtype=float32 start=image layout=NC dims=var shapes=2,4,w"
        " steps=transposed:2:1:2:0+conv:1:3:1:2:1+relu end=sum:1:0 sizes=w4/w9 seed=4"
    ),
    # TVM cannot tell what joined loops over such sizes read, when it lowers them.
    (
        "lang=relax pipe=cpu order=1 dtype=float32 start=image layout=N_C dims=var shapes=n,10,w,c"
        " steps=conv:1:1:1:1:1+avg:3:1:1 end=mean:0.2.3:1 sizes=n4,w2,c3/n1,w11,c3 seed=5"
    ),
]


@pytest.mark.longer_cases("rest")
@pytest.mark.parametrize("seeds", [range(3), range(3, 5)], ids=["first", "rest"])
def test_share(seeds: range) -> None:
    assert not failures(GENERATOR, seeds, seed=1)


@pytest.mark.share(2)
@pytest.mark.parametrize("line", FOUND, ids=range(len(FOUND)))
def test_what_it_found(line: str) -> None:
    assert check(line) is None


def test_a_wrong_value_and_a_missing_refusal_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    line = (
        "lang=relax pipe=cpu order=0 dtype=float32 start=matrix layout=NC dims=var shapes=n,3"
        " steps=none end={}:0:0 sizes=n0 seed=4"
    )
    assert check(line.format("sum")) is None
    assert str(check(line.format("max"))).startswith("refused: max: no element to choose of (0, 3)")

    def other(line: str, arrays: list[Any]) -> list[Any]:
        return [np.zeros(3)] if not arrays[0].size else wanted(line, arrays)

    monkeypatch.setattr(symbolic_sizes, "wanted", other)
    assert check(line.format("sum")) is None
    assert check(line.format("prod")) == "at n0: value 0: 1.7 off, [1. 1. 1.] for [0. 0. 0.]"
    assert str(check(line.format("max"))).startswith("at n0: ValueError: max: no element")
