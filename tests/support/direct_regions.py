"""Regions of problems by kernels of our own: by the fastest expected, or by any."""

from __future__ import annotations

import numpy as np

from byoc_cudnn.backends.cuda_direct.model import ranked
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvProblem


def direct_region(
    symbol: str, problem: ConvProblem, name: str, rng: np.random.Generator | None, *,
    oldest: int = 90, arch: int | tuple[int, ...] = 90, family: str | None = None,
) -> Region:  # fmt: skip
    """A problem with the epilogue of this name.

    rng : draws the kernel; None: the one that is expected to be fastest.  oldest : the GPU whose
    kernels they are.  arch : what it is built for.  family : whose kernels; None: all that take it.
    """
    epilogue = tuple(x for x in name.split("_") if x)
    kernels = [
        choice.kernel
        for choice in ranked(problem, epilogue, oldest)
        if family in (None, choice.kernel.family)
    ]
    kernel = kernels[0 if rng is None else int(rng.integers(len(kernels)))]
    return Region.of(symbol, problem, epilogue, kernel=kernel.name, arch=arch)
