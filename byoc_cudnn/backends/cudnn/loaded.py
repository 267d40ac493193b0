"""The library of `any_problem`, in `cudnn-library` of the user's cache (`building.standing`)."""

from __future__ import annotations

from typing import Any

from relay_wgrad.problem import ConvProblem

from ...building.standing import Standing
from .any_problem import CONVOLUTION, arguments, source
from .check import Options
from .codegen import PLANS

LIBRARY = Standing("cudnn-library", "cuDNN's library", source, lambda found: found.missing())


def convolution(problem: ConvProblem, options: Options) -> Any:
    """A function of the problem's two operands and its result: tensors of any sizes that fit.

    Equal problems share the plans that were found for them.

    Raises
    ------
    ValueError : for what cuDNN has not: asymmetric padding, other layouts or dtypes.
    ToolchainError : if the library has to be built, and something for that is missing or fails.
    """
    return LIBRARY.module()[CONVOLUTION](*arguments(problem, options))


def plans() -> list[str]:
    """What was chosen for each problem that has run in this process, as `Library.plans` says."""
    return [] if LIBRARY.loaded is None else str(LIBRARY.loaded[PLANS]()).splitlines()
