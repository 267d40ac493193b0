"""Where a trainer trains: the CPU or a GPU, what either needs, and how a step is compiled for it.

A `Place` is all that a trainer knows of its device.  What training on a GPU needs is looked for
here once: `python -m relay_wgrad env` prints what `lacking` gives, and `place` raises it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import tvm
from tvm.target import Target

import byoc_cudnn
from byoc_cudnn.building import toolchain
from byoc_cudnn.building.compiled import release_workspaces
from byoc_cudnn.codegen import direct
from byoc_cudnn.table import BACKENDS, backend_of
from byoc_cudnn.tuning.versions import arch_of
from legalize.cpu import host_target

from ..facts import lowered_convolutions
from ..pipeline.cuda import cuda_pipeline
from ..pipeline.fused_kernels import legalize_ops
from ..transform.depth_blocks import FORMS
from ..transform.depth_forms import Wanted
from .capture import Lane
from .compiled import Compiled, Progress, compile_module, planned_memory
from .cuda_tools import cuda_compiler, cuda_runtime, has_nvrtc
from .libraries import partitioned
from .lines import CudaLine, HostLine
from .options import HOPPER, SELECT, Options
from .repeated import Work
from .schedules import is_count
from .step import ADJOINT

_OUT_OF_MEMORY = re.compile(r"out of memory|MEMORY_ALLOCATION|ALLOC_FAILED", re.IGNORECASE)
DEVICES = "cpu, cuda, cuda:N or auto"


def _nothing() -> None:
    """On a CPU a step is over when it returns."""


@dataclass
class Place:
    """A device to train on.

    name : "cpu" or "cuda:0".
    device : TVM's.
    layout : of activations, if none is asked for.
    compile : a step's module to a program.
    line : how batches get there.
    memory : (free, all) bytes of the device, None where the process's own is what counts.
    norms : whether there are kernels for batch normalization as one operator.
    work : makes where steps are captured (`relay_wgrad.training.repeated`); None: nowhere.
    blocks : whether convolutions of few channels are wanted on blocks of pixels, or in which form,
        or what kernels need that may take them as they are.
    wide : whether sums of half operands that are float32 stay so (`Options`).
    sizes : for how many numbers of images, of a graph whose batch is open, a compiled step is kept;
        None: one step takes any number.
    wait : until what the device was given is over; libraries then keep no memory for calls.
    notes : what a user should know of it, one line each.
    """

    name: str
    device: Any
    layout: str | None
    compile: Callable[[tvm.IRModule, Progress], Compiled]
    line: Callable[[], Any]
    memory: Callable[[], tuple[int, int]] | None = None
    norms: bool = False
    work: Callable[[], Work] | None = None
    blocks: Wanted = False
    wide: bool = True
    sizes: int | None = None
    wait: Callable[[], None] = _nothing
    notes: list[str] = field(default_factory=list)

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    def give_back(self) -> None:
        """Gives the device memory back that this process has and nothing uses."""
        tvm.get_global_func("vm.builtin.memory_manager.clear")()

    @contextlib.contextmanager
    def memory_errors(self) -> Iterator[None]:
        """Within it, a GPU without enough memory is a MemoryError that says how much it has."""
        try:
            yield
        except Exception as error:
            if self.memory is None or not _OUT_OF_MEMORY.search(str(error)):
                raise
            free, total = (f"{n / 2**30:.1f}" for n in self.memory())
            raise MemoryError(
                f"{self.name} is out of memory: {free} of {total} GiB are free.  A smaller batch,"
                " dtype float16 or bfloat16, or checkpoints need less."
            ) from error


def place(device: str | Target, options: Options | None = None) -> Place:
    """The place that a name or a CPU's target stands for; "auto" is a GPU if one can be used.

    Raises ValueError for another name, and for a GPU naming all that is missing.
    """
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise TypeError(f"on_gpu must be Options, got {options!r}")
    if options.select not in SELECT:
        raise ValueError(f"select must be {' or '.join(SELECT)}, got {options.select!r}")
    if options.blocks not in (True, False, *FORMS):
        raise ValueError(f"blocks must be a bool or of {', '.join(FORMS)}, got {options.blocks!r}")
    if not is_count(options.sizes, 1):
        raise ValueError(f"sizes must be an integer of at least 1, got {options.sizes!r}")
    if isinstance(device, Target):
        if str(device.kind.name) == "cuda":
            raise ValueError("Trainer: for a GPU give device='cuda', not a target")
        return _cpu(device)
    if not isinstance(device, str):
        raise TypeError(f"device must be {DEVICES}, or a CPU's target, got {device!r}")
    if device == "cpu":
        return _cpu(winograd=options.winograd)
    match = re.fullmatch(r"cuda(?::([0-9]{1,3}))?|auto", device)
    if match is None:
        raise ValueError(f"device must be {DEVICES}, got {device!r}")
    index = int(match[1] or 0)
    missing = lacking(index)
    if missing and device == "auto":
        cpu = _cpu(winograd=options.winograd)
        return replace(cpu, notes=["on the CPU: " + "; ".join(missing)])
    if missing:
        raise ValueError(f"device {device!r} cannot be trained on: " + "; ".join(missing))
    return _cuda(index, options)


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


def compiled_here(mod: tvm.IRModule, function: str) -> Any:
    """A virtual machine of a module whose `function` runs on this machine's CPU."""
    return compile_module(mod, host_target(), function=function).vm


def _cpu(target: Target | None = None, winograd: bool = True) -> Place:
    def compile_for(mod: tvm.IRModule, progress: Progress) -> Compiled:
        chosen = host_target(allow_winograd=winograd) if target is None else target
        return compile_module(mod, chosen, progress=progress)

    return Place("cpu", tvm.cpu(), None, compile_for, HostLine)


def _cuda(index: int, options: Options) -> Place:
    runtime = cuda_runtime()
    device = tvm.cuda(index)
    notes: list[str] = []
    chosen = _backends(options, notes, device)

    def compile_for(mod: tvm.IRModule, progress: Progress) -> Compiled:
        return _compiled(mod, device, chosen, options, notes, progress)

    def line() -> CudaLine:
        return CudaLine(runtime, device, index)

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
        f"cuda:{index}", device, "NHWC", compile_for, line, memory, norms, work, blocks,
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


def _compiled(
    mod: tvm.IRModule,
    device: Any,
    backends: Sequence[str],
    options: Options,
    notes: list[str],
    progress: Progress,
) -> Compiled:
    start, target = time.perf_counter(), Target.from_device(device)
    progress("partitioning")
    if backends:
        mod, convolutions = partitioned(mod, backends, options, notes, device, progress)
    else:
        with target:  # a copy: the pipeline has something to do before
            convolutions = lowered_convolutions(legalize_ops()(mod), ADJOINT)
    split = time.perf_counter()
    progress("compiling")
    with cuda_compiler(), planned_memory() as plan:
        pipeline = cuda_pipeline(keep_memory=options.graph)
        library = byoc_cudnn.build(mod, target, pipeline=pipeline)
        vm = library.virtual_machine(device)
    seconds = {"partition": split - start, "build": time.perf_counter() - split}
    return Compiled(
        vm, library.executable, convolutions, seconds, plan.bytes.get(ADJOINT, 0),
        plans=library.plans, direct=library.direct,
    )  # fmt: skip
