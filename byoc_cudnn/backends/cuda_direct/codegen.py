"""Code generation for our own kernels: host code for all regions of a module, and its kernels.

The source is host code with a row of constants for each distinct convolution, as cuDNN's is.  Its
kernels are translation units of their own (`kernels`); comments at its end name them, and `objects`
has them built and cached when the source is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ...codegen.entry import KINDS, called, exported, window
from ...codegen.linked import DTYPES, head, source
from ...codegen.regions import Region
from ...codegen.templates import template
from ...fused import has_bias
from ..base import plans_of
from .check import CODEGEN, Options, bound
from .families import FAMILIES
from .kernels import Kernel
from .model import choose

__all__ = ["PLANS", "generate", "head_and_runtime"]

PLANS = plans_of(CODEGEN)  # an exported function: the kernels called so far, as text
_TEMPLATES = (
    "direct_problem.h", "cuda_common.h", "cuda_tensor.h", "conv_operands.h", "direct_call.h",
    "cuda_entry.h",
)  # fmt: skip
_HEAD = head("Convolutions by kernels of its own")


@lru_cache(maxsize=1)
def head_and_runtime() -> str:
    """What every source begins with; it is the same for all modules."""
    return "\n".join([_HEAD, *(template("cuda_direct", name) for name in _TEMPLATES)])


def generate(regions: Sequence[Region], arch: int | None = None) -> str:
    """The C++ source of regions: a row for each distinct convolution, a function for each.

    `arch` is the GPU to build for, as nvcc numbers it, if that is newer than each region's option;
    it says nothing where an option names several.

    Raises ValueError for a problem that `check` refuses, with its reason.
    """
    given = [Options(**region.options) for region in regions]
    target = max([arch or 0, *(options.archs[-1] for options in given)])
    rows: dict[str, int] = {}
    functions = []
    built: dict[str, set[int]] = {}  # by kernel, the GPUs that have its machine code
    for region, options in zip(regions, given, strict=True):
        archs = options.archs if len(options.archs) > 1 else (target,)
        text, kernel = _row(region, options, archs[-1])
        built.setdefault(kernel.name, set()).update(archs)
        functions.append(exported(region, rows.setdefault(text, len(rows))))
    names = sorted(built)
    return source(
        head_and_runtime(), rows, functions, PLANS, "RelayWgradDirectKernel", names,
        {name: built[name] for name in names},
    )  # fmt: skip


def _row(region: Region, options: Options, arch: int) -> tuple[str, Kernel]:
    p = region.problem
    decision = bound(options)(p, "_".join(region.epilogue))
    if not decision:
        raise ValueError(f"{region.symbol}: {decision.reason}")
    kernel = choose(p, region.epilogue, options, arch)
    values = [
        f"Kind::{KINDS[p.kind]}",
        str(p.groups),
        str(p.rank),
        *window(p),
        *(f"Element::{DTYPES[d]}" for d in (p.data_dtype, p.weight_dtype, p.grad_dtype)),
        str(p.data_layout == "NCHW").lower(),
        str(has_bias(region.epilogue)).lower(),
        str(FAMILIES[kernel.family].alignment(p, kernel.numbers)),
    ]
    lines = [called(region), ", ".join(values), f'"{kernel.name}"', kernel.name]
    return "    {" + ",\n     ".join(lines) + "},", kernel
