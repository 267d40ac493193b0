"""Tables of Resize by PyTorch's interpolation of an identity matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relay_wgrad.frontend.context import Node
from relay_wgrad.frontend.onnx.resize import matrix_of
from tests.support.onnx.models import node

MODES = {"linear": "bilinear", "cubic": "bicubic"}


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_by_pytorch(mode: str, antialias: int) -> None:
    """With antialias PyTorch's cubic has another slope, and nothing outside counts."""
    slope = -0.5 if antialias else -0.75
    given = {"mode": mode, "antialias": antialias, "exclude_outside": antialias,
             "cubic_coeff_a": slope}  # fmt: skip
    for size, count in ((7, 3), (8, 4), (5, 9), (6, 6), (9, 7), (14, 2), (4, 13)):
        unit = torch.eye(size, dtype=torch.float64).reshape(1, size, size, 1).repeat(1, 1, 1, 2)
        want = torch.nn.functional.interpolate(
            unit, (count, 2), mode=MODES[mode], antialias=bool(antialias)
        )[0, :, :, 0].T.numpy()
        got = matrix_of(Node(node("Resize"), [], given), size, count, count / size)
        np.testing.assert_allclose(got, want, atol=1e-12)
