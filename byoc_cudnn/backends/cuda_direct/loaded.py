"""Our own kernels in this process without a compiled module: each built once, then loaded.

A kernel's object is the one that modules are linked with; beside it lies a library of it alone.
What calls it is a library of its own (`building.fixed_source`), in `direct-library` of the cache:
its function `CONVOLUTION` takes what a row of a module's source has and a kernel's address
(`arguments`), and returns a function of two operands and a result.
"""

from __future__ import annotations

from typing import Any

from relay_wgrad.problem import ConvProblem

from ...building.compilers import missing
from ...building.fixed_source import Standing
from ...building.loaded_objects import entry_of
from ...codegen.any_problem import attributes, tables
from ...codegen.linked import DTYPES
from ...codegen.templates import shared, template
from .check import CODEGEN, LAYOUTS, NAME, Options
from .codegen import PLANS, head_and_runtime
from .families import FAMILIES
from .kernels import Kernel
from .model import choose
from .objects import objects_of

CONVOLUTION = f"{CODEGEN}_convolution"


def source() -> str:
    """The library's source: the same for all convolutions."""
    dtypes = {name: f"Element::{value}" for name, value in DTYPES.items()}
    return "\n".join([
        head_and_runtime(),
        tables(NAME, LAYOUTS, ("NCHW",), ("Element", dtypes)),
        shared("cuda_any.h"),
        template("cuda_direct", "direct_any.h"),
        f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({CONVOLUTION}, convolution);",
        f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({PLANS}, plans);\n",
    ])  # fmt: skip


def arguments(problem: ConvProblem, kernel: Kernel, address: int) -> tuple[Any, ...]:
    """What `CONVOLUTION` takes for a problem and a kernel, which must be one of its."""
    alignment = FAMILIES[kernel.family].alignment(problem, kernel.numbers)
    return (*attributes(problem), alignment, kernel.name, address)


LIBRARY = Standing("direct-library", "cuda_direct's library", source, missing)


def convolution(problem: ConvProblem, options: Options, arch: int) -> Any:
    """A function of the problem's two operands and its result, for a GPU as nvcc numbers it.

    Tensors of other numbers of images are right too; other sizes are refused by some kernels.

    Raises
    ------
    ValueError : where no kernel serves the problem, or not the one that the options name.
    ToolchainError : if something has to be built, and what that needs is missing or fails.
    """
    kernel = choose(problem, (), options, arch)
    built = address(kernel, arch)  # before the library, for which other threads may wait
    return LIBRARY.module()[CONVOLUTION](*arguments(problem, kernel, built))


def plans() -> list[str]:
    """The kernels that have run in this process, as `Library.plans` says."""
    return [] if LIBRARY.loaded is None else str(LIBRARY.loaded[PLANS]()).splitlines()


def address(kernel: Kernel, *archs: int) -> int:
    """Of a kernel's function in this process.  Raises ToolchainError as `convolution` does."""
    return entry_of(kernel.name, archs, lambda found: objects_of([(archs, kernel.name)], found)[0])
