"""A GPU as a place to train: what it needs, and how a step is compiled for it.

What training on a GPU needs is looked for here once: `python -m relay_wgrad env` prints what
`lacking` gives, and `devices.place` raises it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tvm
from tvm.target import Target

import byoc_cudnn
from byoc_cudnn.building import toolchain
from byoc_cudnn.building.compiled import release_workspaces
from byoc_cudnn.codegen import direct
from byoc_cudnn.point_weights.lower import point_symbols
from byoc_cudnn.table import BACKENDS, backend_of
from byoc_cudnn.tuning.versions import arch_of

from ..facts import Lowered, lowered_convolutions
from ..pipeline.cuda import cuda_pipeline
from ..pipeline.fused_kernels import legalize_ops
from ..transform.depth_forms import Wanted
from .capture import Lane
from .compiled import Compiled, Cut, Progress, planned_memory
from .cuda_tools import cuda_compiler, cuda_runtime, has_nvrtc
from .libraries import partitioned
from .options import HOPPER, Options
from .places import Place
from .step import ADJOINT
from .transfers import CudaTransfers

POINTS = "point_weights"
"""As the source of a convolution: the kernel of weight gradients of one pixel."""


def lacking(index: int = 0) -> list[str]:
    """What training on a GPU lacks here, one line each; empty where nothing does."""
    found = toolchain.find()
    toolchain.preload(found)
    lines = []
    if not tvm.cuda(index).exist:
        others = sum(bool(tvm.cuda(i).exist) for i in range(index))
        if others:
            lines.append(f"there is no GPU {index}: TVM finds {others}")
        elif shutil.which("nvidia-smi") is None:
            lines.append("no GPU: there is no nvidia-smi on PATH, so no driver of NVIDIA's")
        elif found.cuda.shared_library is None:
            lines.append("CUDA's runtime, which TVM loads: not found; " + toolchain.INSTALL)
        else:
            lines.append("no GPU that TVM can use; its build wants a driver for CUDA 13")
    if not has_nvrtc() and found.nvcc is None:
        lines.append(
            "a compiler of CUDA kernels: neither nvcc nor NVRTC's bindings; pip install"
            " 'relay-wgrad[cutlass]' or pip install cuda-bindings"
        )
    return lines


def libraries() -> tuple[list[str], list[str]]:
    """Names of the libraries that convolutions can go to here, and for each other one the reason.

    A reason is one line that begins with the library's name.
    """
    found = toolchain.find()
    usable, reasons = [], []
    for name, backend in BACKENDS.items():
        try:
            backend.inputs("", found, None)
        except toolchain.ToolchainError as error:
            reasons.append(f"{name}: " + "; ".join(str(error).splitlines()[1:] or [str(error)]))
            continue
        if backend.version(found) is None:
            reasons.append(f"{name}: not installed")
        else:
            usable.append(name)
    return usable, reasons


def readiness() -> str:
    """One text for `env`: whether a GPU can be trained on, by which libraries, what is missing."""
    missing = lacking()
    usable, reasons = libraries()
    by = ", ".join(usable) or "generated kernels alone"
    parts = ["not possible: " + "; ".join(missing)] if missing else [f"yes, convolutions by {by}"]
    return "\n".join([*parts, *(f"without {reason}" for reason in reasons)])


def place_of(index: int, options: Options) -> Place:
    """The GPU of that number.  Raises ValueError where a library is missing that must be there."""
    runtime = cuda_runtime()
    device = tvm.cuda(index)
    notes: list[str] = []
    chosen = _backends(options, notes, device)

    def compile_for(mod: tvm.IRModule, progress: Progress, cut: Cut | None = None) -> Compiled:
        return _compiled(mod, device, chosen, options, notes, progress, cut)

    def transfers() -> CudaTransfers:
        return CudaTransfers(runtime, device, index)

    def memory() -> tuple[int, int]:
        runtime.call("cudaSetDevice", index)
        return runtime.memory()

    def wait() -> None:
        runtime.call("cudaSetDevice", index)
        runtime.call("cudaDeviceSynchronize")
        release_workspaces()

    norms = options.norms and not direct.missing(toolchain.find())
    work = partial(Lane, runtime, device) if options.graph else None
    blocks = _blocks(options, chosen, device) if chosen else False
    return Place(
        f"cuda:{index}", device, "NHWC", compile_for, transfers, memory, norms, work, blocks,
        options.wide, options.sizes, wait, notes,
    )  # fmt: skip


def _backends(options: Options, notes: list[str], device: Any = None) -> list[str]:
    """The libraries to ask; what is missing goes into the notes.

    Raises ValueError for an unknown name, and with `strict` where one is missing.
    """
    usable, reasons = libraries()
    if options.backends is None and options.select == "first":
        helpers = [name for name in usable if BACKENDS[name].helps]
        main = [name for name in usable if name not in helpers][:1]
        helped = options.helpers and device is not None and arch_of(device) == HOPPER
        chosen, wanted = (helpers if helped and main else []) + main, not main
    elif options.backends is None:
        chosen, wanted = usable, not usable
    else:
        for name in options.backends:
            backend_of(name)
        chosen = [name for name in options.backends if name in usable]
        wanted = len(chosen) < len(options.backends)
        reasons = [r for r in reasons if r.partition(":")[0] in options.backends]
    if wanted and reasons:
        text = "; ".join(reasons)
        if options.strict:
            raise ValueError(f"strict: a library for convolutions is missing: {text}")
        by = ", ".join(chosen) or "generated CUDA kernels"
        notes.append(f"convolutions by {by}, which is slower or the same: {text}")
    return chosen


def _blocks(options: Options, chosen: Sequence[str], device: Any) -> Wanted:
    """Forms for convolutions of few channels, or those kernels that are asked before the others."""
    first = BACKENDS[chosen[0]]
    asked = len(chosen) > 1 and first.helps and options.select == "first" and not options.wide
    known = options.blocks is True and asked and arch_of(device) == HOPPER
    return first.microseconds if known else options.blocks


def _by_points(conv: Lowered) -> Lowered:
    """What is said of a weight gradient that the build takes back from its library."""
    return replace(conv, source=POINTS, reason="one launch for all of one pixel")


def _compiled(
    mod: tvm.IRModule,
    device: Any,
    backends: Sequence[str],
    options: Options,
    notes: list[str],
    progress: Progress,
    cut: Cut | None,
) -> Compiled:
    start, target = time.perf_counter(), Target.from_device(device)
    progress("partitioning")
    if backends:
        mod, convolutions = partitioned(mod, backends, options, notes, device, progress)
        taken = frozenset() if direct.missing(toolchain.find()) else point_symbols(mod)
        convolutions = [_by_points(conv) if conv.kernel in taken else conv for conv in convolutions]
    else:
        with target:  # a copy: the pipeline has something to do before
            convolutions = lowered_convolutions(legalize_ops()(mod), ADJOINT)
    split = time.perf_counter()
    progress("compiling")
    with cuda_compiler(), planned_memory() as plan:
        pipeline = cuda_pipeline(keep_memory=options.graph)
        library = byoc_cudnn.build(mod, target, pipeline=pipeline, cut=cut)
        vm = library.virtual_machine(device)
    seconds = {"partition": split - start, "build": time.perf_counter() - split}
    return Compiled(
        vm, library.executable, convolutions, seconds, plan.bytes.get(ADJOINT, 0),
        plans=library.plans, direct=library.direct,
    )  # fmt: skip
