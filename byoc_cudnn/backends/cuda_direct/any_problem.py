"""One C++ source for our own kernels that are loaded when a program runs.

Its function `CONVOLUTION` takes what a row of a module's source has and a kernel's address
(`arguments`), and returns a function of two operands and a result.
"""

from __future__ import annotations

from typing import Any

from relay_wgrad.problem import ConvProblem

from ...codegen.any_problem import attributes, tables
from ...codegen.linked import DTYPES
from ...codegen.templates import shared, template
from .check import CODEGEN, LAYOUTS, NAME
from .codegen import PLANS, head_and_runtime
from .families import FAMILIES
from .kernels import Kernel

CONVOLUTION = f"{CODEGEN}_convolution"


def source() -> str:
    """The source; it is the same for all convolutions."""
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
