"""Conversions of layout change no number: random programs, evaluated without a compiler."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad.relay import transform as T
from tests.support.relay.evaluate import evaluate
from tests.support.relay.layout_programs import DESIRED, arrays, program
from tests.support.relay.unchanged import flat


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from(DESIRED))
@settings(max_examples=100, deadline=None)
def test_conversion_changes_no_number(seed: int, steps: int, desired: dict[str, list[str]]) -> None:
    """`layout_programs.program(seed, steps)` is what failed."""
    mod = program(seed, steps)
    converted = T.ConvertLayout(desired)(mod)
    assert converted["main"].checked_type == mod["main"].checked_type
    inputs = arrays(mod)
    with np.errstate(all="ignore"):
        want = evaluate(mod["main"], inputs)
        got = evaluate(converted["main"], inputs)
    for ours, theirs in zip(flat(got), flat(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
