"""Our kernels of grouped convolutions and few filters on a device, against PyTorch in float64.

Results and workspaces begin as NaN.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from byoc_cudnn.backends.cuda_direct.check import check
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.direct_regions import direct_region
from tests.support.gpu.cudnn_runner import destination, operands_on_device, to_numpy
from tests.support.gpu.direct_runner import load, wrong_ones
from tests.support.grouped_cases import FAMILY_KINDS, FAMILY_NAMES, SPECIAL, drawn
from tests.support.special_values import wrong

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered", "poisoned_workspaces")]
SEED, COUNT = 53, 40


@pytest.mark.parametrize(("family", "kind"), FAMILY_KINDS)
def test_random_problems(kind: ConvKind, family: str, tmp_path: Path) -> None:
    """Half of them by the kernel that is expected to be fastest, half by any; each twice."""
    rng = np.random.default_rng((SEED, list(ConvKind).index(kind), FAMILY_NAMES.index(family)))
    regions: list[Region] = []
    while len(regions) < COUNT:
        index = len(regions)
        problem, name = drawn(rng, kind, family)
        regions.append(
            direct_region(f"f{index}", problem, name, None if index % 2 else rng, family=family)
        )
    assert wrong_ones(regions, tmp_path, SEED) == []


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_special_values(dtype: str, tmp_path: Path) -> None:
    problems = [
        ConvProblem.parse(f"{kind.value} {line} dtype={dtype}/{dtype}/{dtype}")
        for line in SPECIAL
        for kind in ConvKind
    ]
    problems = [p for p in problems if check(p, "")]  # there is no gradient of an image
    regions = [Region.of(f"f{i}", p, arch=90) for i, p in enumerate(problems)]
    functions = load(regions, tmp_path)
    found = []
    for region in regions:

        def run(given: list[np.ndarray], region: Region = region) -> np.ndarray:
            out = destination(region.problem)
            functions[region.symbol](*operands_on_device(region.problem, *given), out)
            return to_numpy(out)

        found += wrong(region.problem, run)
    assert found == []
