"""Convolutions of cuDNN that are known only when a program runs, by one library.

Its source is the same for all; it is in `cudnn-library` of the user's cache
(`building.fixed_source`).  Its function `CONVOLUTION` takes what a row of a module's source has
(`arguments`), and returns a function of two operands and a result, of any sizes.
"""

from __future__ import annotations

from typing import Any

from relay_wgrad.problem import ConvProblem

from ...building.fixed_source import Standing
from ...codegen.any_problem import attributes, tables
from ...codegen.templates import shared, template
from . import scaled_half
from .check import CODEGEN, CUDNN_TYPES, DTYPES, LAYOUTS, VOLUME_LAYOUTS, Options
from .codegen import OPTIONS, PLANS, head_and_runtime

CONVOLUTION = f"{CODEGEN}_convolution"


def source() -> str:
    """The library's source."""
    layouts, last = (*LAYOUTS, *VOLUME_LAYOUTS), ("NHWC", "NDHWC")
    types = (
        ("cudnnDataType_t", {name: CUDNN_TYPES[name] for name in DTYPES}),
        ("unsigned", OPTIONS),
    )
    return "\n".join([
        head_and_runtime(),
        tables("cudnn", layouts, last, *types),
        shared("cuda_any.h"),
        template("cudnn", "cudnn_any.h"),
        f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({CONVOLUTION}, convolution);",
        f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({PLANS}, plans);\n",
    ])  # fmt: skip


def arguments(problem: ConvProblem, options: Options, scaled: int = 0) -> tuple[Any, ...]:
    """What `CONVOLUTION` takes for a problem, of which its sizes are for messages only.

    scaled : the address of the kernel of `scaled_half`, where that may serve.
    """
    limit = options.workspace_limit
    chosen = [name for name in OPTIONS if getattr(options, name)]
    return (*attributes(problem), chosen, -1 if limit is None else limit, scaled)


LIBRARY = Standing("cudnn-library", "cuDNN's library", source, lambda found: found.missing())


def convolution(problem: ConvProblem, options: Options) -> Any:
    """A function of the problem's two operands and its result: tensors of any sizes that fit.

    Equal problems share the plans that were found for them.

    Raises
    ------
    ValueError : for what cuDNN has not: asymmetric padding, other layouts or dtypes.
    ToolchainError : if the library has to be built, and something for that is missing or fails.
    """
    scaled = scaled_half.address() if scaled_half.may_serve(problem, options) else 0
    return LIBRARY.module()[CONVOLUTION](*arguments(problem, options, scaled))


def plans() -> list[str]:
    """What was chosen for each problem that has run in this process, as `Library.plans` says."""
    return [] if LIBRARY.loaded is None else str(LIBRARY.loaded[PLANS]()).splitlines()
