"""Our own convolution kernels on a device, against PyTorch in float64; everything starts as NaN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from byoc_cudnn.backends.cuda_direct.model import ranked
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvKind
from tests.support.depthwise_cases import drawn
from tests.support.gpu.direct_runner import wrong_ones

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered", "poisoned_workspaces")]
SEED, COUNT = 47, 60


@pytest.mark.parametrize("kind", list(ConvKind))
def test_random_depthwise_problems(kind: ConvKind, tmp_path: Path) -> None:
    """Half of them by the kernel that is expected to be fastest, half by any."""
    rng = np.random.default_rng((SEED, list(ConvKind).index(kind)))
    regions: list[Region] = []
    while len(regions) < COUNT:
        problem, name = drawn(rng, kind)
        epilogue = tuple(x for x in name.split("_") if x)
        choices = ranked(problem, epilogue, 90)
        chosen = choices[0 if len(regions) % 2 else int(rng.integers(len(choices)))].kernel
        regions.append(
            Region.of(f"f{len(regions)}", problem, epilogue, kernel=chosen.name, arch=90)
        )
    assert wrong_ones(regions, tmp_path, SEED) == []
