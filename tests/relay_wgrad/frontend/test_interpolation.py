"""Interpolation's matrices by PyTorch's interpolation of an identity matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relay_wgrad.frontend.interpolation import Interpolation

MODES = {"linear": "bilinear", "cubic": "bicubic"}


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_by_pytorch(mode: str, antialias: int) -> None:
    """With antialias PyTorch's cubic has another slope, and nothing outside counts."""
    slope = -0.5 if antialias else -0.75
    how = Interpolation(mode, antialias=bool(antialias), slope=slope, inside=bool(antialias))
    for size, count in ((7, 3), (8, 4), (5, 9), (6, 6), (9, 7), (14, 2), (4, 13)):
        unit = torch.eye(size, dtype=torch.float64).reshape(1, size, size, 1).repeat(1, 1, 1, 2)
        want = torch.nn.functional.interpolate(
            unit, (count, 2), mode=MODES[mode], antialias=bool(antialias)
        )[0, :, :, 0].T.numpy()
        np.testing.assert_allclose(how.matrix(size, count, count / size), want, atol=1e-12)
