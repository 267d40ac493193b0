"""CUTLASS regions of random problems: built without TVM's compiler, run on torch's tensors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from byoc_cudnn.backends.cutlass import check as cutlass
from byoc_cudnn.backends.cutlass.codegen import generate
from byoc_cudnn.backends.cutlass.objects import find_cutlass
from byoc_cudnn.codegen.regions import Region
from tests.support.gpu import regions_runner
from tests.support.gpu.cudnn_runner import (
    library_tolerance,
)

region_of = Region.of
SEED = 31
F16 = "layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"


def load(regions: Iterable[Region], folder: Path) -> Any:
    """The module of the regions' functions, with kernels for the GPU that is there."""
    return regions_runner.load(generate, regions, folder)


def limit_of(region: Region) -> float:
    p = region.problem
    exact = p.data_dtype == "float32" and not region.options.get("allow_tf32", True)
    return library_tolerance(p, tf32=not exact)


def shares(region: Region, function: Any, rng: np.random.Generator) -> tuple[float, bool]:
    """A random problem's error as a share of its tolerance, and whether two runs gave the same."""
    return regions_runner.share(region, function, rng, limit_of)


def wrong_ones(regions: list[Region], folder: Path, seed: int) -> list[str]:
    """What is off by more than its tolerance, differs between two runs, or fails."""
    return regions_runner.wrong_ones(load(regions, folder), regions, seed, limit_of)


def needs_hopper() -> None:
    found = find_cutlass()
    if found is None or not found.has_builders:
        pytest.skip("needs the headers of nvidia-cutlass, or CUTLASS_HOME")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of sm_90")


EPILOGUES = [(kind, e) for kind, names in cutlass.EPILOGUES.items() for e in names if e]
