"""Regions of our own convolution kernels: built without TVM's compiler, run on torch's tensors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from byoc_cudnn.backends.cuda_direct.codegen import generate
from byoc_cudnn.codegen.regions import Region
from tests.support.gpu import regions_runner
from tests.support.problems import tolerance


def load(regions: Iterable[Region], folder: Path) -> Any:
    """The module of the regions' functions, with kernels for the GPU that is there."""
    return regions_runner.load(generate, regions, folder)


def wrong_ones(regions: list[Region], folder: Path, seed: int) -> list[str]:
    """What is off by more than its tolerance, differs between two runs, or fails."""
    functions = load(regions, folder)
    return regions_runner.wrong_ones(functions, regions, seed, lambda r: tolerance(r.problem))
