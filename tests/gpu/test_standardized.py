"""Standardized weights on a GPU, against float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from byoc_cudnn.standardized import STANDARDIZED, StandardizedCall, Weight
from tests.support.gpu.norm_runner import load_source
from tests.support.gpu.standardized_runner import LIMITS, WEIGHTS, wrong_directions

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_both_directions(tmp_path: Path, dtype: str) -> None:
    """More weights than a launch's table holds."""
    assert not wrong_directions(tmp_path, dtype, WEIGHTS * 12)


def test_calls_are_checked(tmp_path: Path) -> None:
    call = StandardizedCall("f", "forward", "float16", (Weight(4, 3, 9),), 1e-6)
    f = load_source(STANDARDIZED.generate, STANDARDIZED.inputs, [call], tmp_path)["f"]
    good = [torch.zeros(n, device="cuda") for n in (108, 4)]
    results = [torch.zeros(108, device="cuda", dtype=torch.float16), torch.zeros(8, device="cuda")]
    f(*good, *results)
    with pytest.raises(TypeError, match="expected 4 tensors, got 3"):
        f(*good, results[0])
    with pytest.raises(ValueError, match="a gain has 5 elements, expected 4"):
        f(good[0], torch.zeros(5, device="cuda"), *results)
