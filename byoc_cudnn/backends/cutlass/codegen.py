"""CUTLASS code generation: host code for all regions of a module, and the kernels that it calls.

The source is host code with a row of constants for each distinct convolution, as cuDNN's is.  Its
kernels are translation units of their own (`kernel_source`), one for each specialization; comments
at its end name them, and `objects` has them built and cached when the source is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from relay_wgrad.problem import DTYPE_BYTES, ConvProblem

from ...codegen.entry import KINDS, called, exported, window
from ...codegen.linked import DECLARED, DTYPES, head, source
from ...codegen.regions import Region
from ...codegen.templates import template
from ...fused import has_bias
from ..base import plans_of
from .check import CODEGEN, Options, check
from .hopper import HOPPER
from .kernel_source import SLICES
from .kernels import MATH_BYTES, Kernel, candidates
from .model import Choice, choose

__all__ = ["PLANS", "generate", "head_and_runtime"]

PLANS = plans_of(CODEGEN)  # an exported function: the kernels called so far, as text
_TEMPLATES = (
    "cutlass_problem.h", "cuda_common.h", "cuda_tensor.h", "conv_operands.h", "cutlass_call.h",
    "cuda_entry.h",
)  # fmt: skip
_HEAD = head("Convolutions on CUTLASS's implicit GEMM")
_SLICES = f"{DECLARED} int {SLICES}(const float*, void*, int, int64_t, int, cudaStream_t);\n"


@lru_cache(maxsize=1)
def head_and_runtime() -> str:
    """What every source begins with; it is the same for all modules."""
    texts = [template("cutlass", name) for name in _TEMPLATES]
    return "\n".join([_HEAD, texts[0], _SLICES, *texts[1:]])


def generate(regions: Sequence[Region], arch: int | None = None) -> str:
    """The C++ source of regions: a row for each distinct convolution, a function for each.

    `arch` is the GPU to build for, as nvcc numbers it, if that is newer than each region's option;
    it says nothing where an option names several.

    Raises ValueError for a problem that `backends.cutlass.check` refuses, with its reason.
    """
    given = [Options(**region.options) for region in regions]
    target = max([arch or 0, *(options.archs[-1] for options in given)])
    rows: dict[str, int] = {}
    functions = []
    built: dict[str, set[int]] = {}  # by kernel, the GPUs that have its machine code
    for region, options in zip(regions, given, strict=True):
        archs = options.archs if len(options.archs) > 1 else (target,)
        text, kernels = _row(region, options, archs)
        for kernel, gpu in zip(kernels, archs, strict=True):
            built.setdefault(kernel.name, set()).add(gpu)
            built.setdefault(SLICES, set()).add(gpu)
        index = rows.setdefault(text, len(rows))
        functions.append(exported(region, index))
    built.setdefault(SLICES, {target})
    names = [SLICES, *sorted(built.keys() - {SLICES})]
    return source(
        head_and_runtime(), rows, functions, PLANS, "RelayWgradKernel", names[1:],
        {name: built[name] for name in names},
    )  # fmt: skip


def _row(region: Region, options: Options, archs: Sequence[int]) -> tuple[str, list[Kernel]]:
    """A row of constants, and the kernel for each GPU."""
    p = region.problem
    decision = check(p, "_".join(region.epilogue), options)
    if not decision:
        raise ValueError(f"{region.symbol}: {decision.reason}")
    choices = [_choose(region, options, archs, arch) for arch in archs]
    values = [
        called(region),
        f"Kind::{KINDS[p.kind]}",
        str(p.groups),
        *window(p),
        *(f"Element::{DTYPES[d]}" for d in (p.data_dtype, p.weight_dtype, p.grad_dtype)),
        str(has_bias(region.epilogue)).lower(),
    ]
    # The newest first: the first that a GPU can run is the one for it.
    variants = [
        _variant(p, choice, arch) for choice, arch in zip(choices[::-1], archs[::-1], strict=True)
    ]
    text = "    {" + ",\n     ".join([values[0], ", ".join(values[1:]), *_braced(variants)]) + "},"
    return text, [choice.kernel for choice in choices]


def _choose(region: Region, options: Options, archs: Sequence[int], arch: int) -> Choice:
    several = len(archs) > 1
    # Code for sm_90a runs on no other GPU.
    wanted = replace(
        options, arch=arch if several else options.arch, wgmma=options.wgmma and arch == 90
    )
    if several:
        known = {kernel.name for kernel in candidates(region.problem, region.epilogue, wanted)}
        if options.kernel not in known:  # what was measured on one GPU is no kernel of another
            wanted = replace(wanted, kernel=None)
    return choose(region.problem, region.epilogue, wanted, arch)


def _variant(problem: ConvProblem, choice: Choice, arch: int) -> str:
    kernel = choice.kernel
    operand = MATH_BYTES[kernel.math]
    sizes = (operand, operand, DTYPE_BYTES[problem.dtype(problem.roles[2])])
    alignment = ", ".join(str(a * n) for a, n in zip(kernel.accesses, sizes, strict=True))
    alone = str(kernel.algorithm in HOPPER).lower()
    return (
        f'{{"{kernel.name}",\n       {kernel.name},'
        f" {{{alignment}}}, {choice.slices}, {arch}, {alone}}}"
    )


def _braced(texts: Sequence[str]) -> list[str]:
    """Lines of an initializer's list."""
    lines = [f" {text}" for text in texts]
    return ["{" + ",\n     ".join(lines)[1:] + "}"]
