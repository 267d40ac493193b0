"""Softmax's kernels on a GPU, against float64, and attention's steps with rows that are packs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from byoc_cudnn.softmax import SOFTMAX, SoftmaxCall
from tests.support.gpu.norm_runner import load_source
from tests.support.gpu.softmax_runner import wrong
from tests.support.softmax import LIMITS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_rows_of_all_lengths(tmp_path: Path, dtype: str) -> None:
    assert not wrong(tmp_path, dtype)


def test_calls_are_checked(tmp_path: Path) -> None:
    call = SoftmaxCall("f", "forward", "float16", "float16", 9)
    f = load_source(SOFTMAX.generate, SOFTMAX.inputs, [call], tmp_path)["f"]
    good = [torch.zeros(4, n, device="cuda", dtype=torch.float16) for n in (9, 16)]
    f(*good)
    with pytest.raises(TypeError, match="expected 2 tensors, got 1"):
        f(good[0])
    with pytest.raises(ValueError, match="rows of the scores have 8 elements, expected 9"):
        f(good[0][:, :8].contiguous(), good[1])
    with pytest.raises(ValueError, match="the result has 48 elements, expected 64"):
        f(good[0], good[1][:3].contiguous())
    with pytest.raises(TypeError, match="the result must be float16"):
        f(good[0], good[1].float())
