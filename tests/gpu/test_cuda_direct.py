"""Our own convolution kernels on a device, against PyTorch in float64; everything starts as NaN."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_wgrad.problem import ConvKind
from tests.support.depthwise_cases import drawn_regions
from tests.support.gpu.direct_runner import wrong_ones

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered", "poisoned_workspaces")]
SEED, COUNT = 47, 60


@pytest.mark.parametrize("kind", list(ConvKind))
def test_random_depthwise_problems(kind: ConvKind, tmp_path: Path) -> None:
    """Half of them by the kernel that is expected to be fastest, half by any."""
    assert wrong_ones(drawn_regions(SEED, kind, COUNT, 90, [90]), tmp_path, SEED) == []
