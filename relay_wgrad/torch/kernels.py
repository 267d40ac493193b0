"""Kernels for PyTorch's tensors: built once for each problem of a process, called by DLPack.

On the CPU they are those of `legalize.cpu`.  On CUDA cuDNN's, built by the host's compiler, where
it takes the problem and is found, else those of `legalize.cuda`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..layouts import ACTIVATION, KERNEL
from ..problem import ConvKind, ConvProblem

# Operands, then the result; whichever is channels last has its axes permuted.
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]

DTYPES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
LAYOUTS = {False: (ACTIVATION, KERNEL), True: ("NHWC", "OHWI")}  # by channels last
ALIGNMENT = {"cpu": 64, "cuda": 16}  # bytes; where PyTorch allocates tensors is more than that

SERIAL_FLOP = 4_000_000
"""Smaller problems run in one thread: waking others takes some 20 us, more where they are busy."""

_kernels: dict[Any, Kernel] = {}
_lock = threading.RLock()
_thread = threading.local()  # `.call`: how this thread calls CPU kernels


def channels_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory order is NHWC; where it is both, it counts as NCHW."""
    if tensor.is_contiguous():
        return False
    if tensor.is_contiguous(memory_format=torch.channels_last):
        return True
    # Neither: a part of such a tensor, say.  Copies keep its order.
    _, c, h, w = tensor.shape
    _, sc, sh, sw = tensor.stride()
    return bool(sc == 1 and c > 1 and sw >= c and sh >= sw * w and h > 0)


def memory_format(is_last: bool) -> torch.memory_format:
    return torch.channels_last if is_last else torch.contiguous_format


def run(
    kind: ConvKind,
    first: torch.Tensor,
    second: torch.Tensor,
    shape: Sequence[int],
    bias: torch.Tensor | None,
    geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int],
    options: tuple[bool | None, bool | None, bool | None],
) -> torch.Tensor:
    """One fprop, dgrad or wgrad; operands and `shape`, the result's, fit each other.

    `geometry`: (strides, padding (top, left, bottom, right), dilation, groups).
    `options`: (benchmark, deterministic, allow_tf32), None for what `torch.backends` says.
    """
    last = (channels_last(first), channels_last(second))
    out_last = last[0] or last[1]
    device, dtype = first.device, first.dtype
    if device.type == "cuda":
        options = _resolved(options)
        last = (out_last, out_last)  # cuDNN has no others
    else:
        options = (None, None, None)
    out = torch.empty(shape, dtype=dtype, device=device, memory_format=memory_format(out_last))
    if first.numel() and second.numel() and out.numel():
        key = (kind, first.shape, second.shape, out.shape, geometry, last, dtype, device, options)
        kernel = _kernels.get(key)
        if kernel is None:
            kernel = _make(key)
        operands = (_view(first, last[0]), _view(second, last[1]))
        kernel(*operands, out.permute(0, 2, 3, 1) if out_last else out)
    else:
        out.zero_()  # an empty sum
    if bias is not None:
        out += bias.view(1, -1, 1, 1)
    return out


def _view(tensor: torch.Tensor, is_last: bool) -> torch.Tensor:
    """The tensor, dense and aligned, its axes in memory's order; a copy only where need be."""
    if tensor.is_neg():  # a lazy minus, as of an imaginary part: DLPack does not know of it
        tensor = tensor.resolve_neg()
    tensor = tensor.contiguous(memory_format=memory_format(is_last))
    if tensor.data_ptr() % ALIGNMENT[tensor.device.type]:  # kernels load whole vectors
        tensor = tensor.clone()
    return tensor.permute(0, 2, 3, 1) if is_last else tensor


def _resolved(options: tuple[bool | None, bool | None, bool | None]) -> Any:
    benchmark, deterministic, allow_tf32 = options
    flags = torch.backends.cudnn
    if deterministic is None:
        deterministic = flags.deterministic or torch.are_deterministic_algorithms_enabled()
    return (
        bool(flags.benchmark if benchmark is None else benchmark),
        bool(deterministic),
        bool(flags.allow_tf32 if allow_tf32 is None else allow_tf32),
    )


def _make(key: Any) -> Kernel:
    with _lock:
        if key not in _kernels:
            device, options = key[-2:]
            problem = _problem(key)
            cpu = device.type == "cpu"
            _kernels[key] = _cpu(problem) if cpu else _cuda(problem, device, options)
        return _kernels[key]


def _problem(key: Any) -> ConvProblem:
    """The problem of a key.  Raises ValueError where it is none."""
    kind, first, second, out, (strides, padding, dilation, groups), last, dtype, _, _ = key
    probe = ConvProblem(kind, 1, 1, 1, 1, 1, 1, 1)
    shapes = dict(zip(probe.roles, (first, second, out), strict=True))
    is_last = dict(zip(probe.roles, (*last, last[0] or last[1]), strict=True))
    n, c, h, w = shapes["data"]
    k, _, r, s = shapes["weight"]
    name = DTYPES[dtype]
    return ConvProblem(
        kind, n, c, h, w, k, r, s, strides, padding, dilation, groups,
        LAYOUTS[is_last["data"]][0], LAYOUTS[is_last["weight"]][1], LAYOUTS[is_last["grad"]][0],
        name, name, name,
    ).check()  # fmt: skip


# ---- CPU -----------------------------------------------------------------------------------------


def _cpu(problem: ConvProblem) -> Kernel:
    from legalize import cpu

    target = cpu.host_target(1 if problem.flop < SERIAL_FLOP else None)
    kernel = _compiled(cpu.prim_func(problem, target), target)
    return lambda first, second, out: _caller()(kernel, first, second, out)


def _compiled(func: Any, target: Any) -> Any:
    import tvm

    module = tvm.compile(
        tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target
    )
    return module["main"]


def _caller() -> Any:
    """How this thread calls kernels.  TVM's pool of threads is one for each calling thread."""
    call = getattr(_thread, "call", None)
    if call is None:
        from legalize import cpu

        cpu.configure_threads(torch.get_num_threads())
        call = _thread.call = _direct
    return call


def _direct(kernel: Any, *tensors: torch.Tensor) -> None:
    kernel(*tensors)


def _after_fork() -> None:
    """A child has one thread and not its pool, for which it would wait forever.

    A fresh thread gets a fresh pool; so kernels of the thread that forked run in one.
    """
    global _lock
    _lock = threading.RLock()
    if getattr(_thread, "call", None) is not None:
        pool = ThreadPoolExecutor(1, "relay_wgrad")
        _thread.call = lambda *args: pool.submit(lambda: _caller()(*args)).result()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ---- CUDA ----------------------------------------------------------------------------------------


def _cuda(problem: ConvProblem, device: torch.device, options: tuple[bool, bool, bool]) -> Kernel:
    from byoc_cudnn import toolchain
    from byoc_cudnn.backends import cudnn

    found = toolchain.find()
    if not found.missing():
        if cudnn.check(problem, ""):
            return _cudnn(problem, options)
        if cudnn.check(inner := _unpadded(problem), ""):
            return _padded(problem, _cudnn(inner, options))
    toolchain.preload(found)
    if find_spec("cuda") is None:  # TVM compiles with NVRTC through NVIDIA's bindings, or with nvcc
        os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    import tvm

    from legalize import cuda

    target = tvm.target.Target.from_device(tvm.cuda(device.index or 0))
    return _compiled(cuda.prim_func(problem, target), target)


def _unpadded(problem: ConvProblem) -> ConvProblem:
    """The problem of which the padding is a part of the data."""
    top, left, bottom, right = problem.padding
    h, w = problem.h + top + bottom, problem.w + left + right
    return replace(problem, padding=(0, 0, 0, 0), h=h, w=w)


def _padded(problem: ConvProblem, kernel: Kernel) -> Kernel:
    """The kernel of a problem, made of that of `_unpadded(problem)`."""
    top, left, bottom, right = problem.padding
    place = problem.roles.index("data")
    # What `pad` reads: the last axis first.  Channels are the last in NHWC.
    widths = [left, right, top, bottom]
    if problem.data_layout != ACTIVATION:
        widths = [0, 0, *widths]
    rows, columns = (problem.data_layout.index(letter) for letter in "HW")

    def padded(*tensors: torch.Tensor) -> None:
        given = list(tensors)
        data = given[place] = torch.nn.functional.pad(tensors[place], widths)
        kernel(given[0], given[1], given[2])
        if place == 2:  # the result, of which this takes what is within the padding
            inner = data.narrow(rows, top, problem.h).narrow(columns, left, problem.w)
            tensors[place].copy_(inner)

    return padded


_libraries: dict[Any, Any] = {}  # attributes -> library


def _cudnn(problem: ConvProblem, options: tuple[bool, bool, bool]) -> Kernel:
    """Its functions take any sizes: one library for each set of attributes, for all three kinds."""
    p = problem
    attributes = (p.strides, p.padding, p.dilation, p.groups, p.data_layout, p.data_dtype, options)
    if attributes not in _libraries:
        _libraries[attributes] = _build(problem, options)
    kernel: Kernel = getattr(_libraries[attributes], problem.kind.value)
    return kernel


def _build(problem: ConvProblem, options: tuple[bool, bool, bool]) -> Any:
    import subprocess

    import tvm_ffi

    from byoc_cudnn import toolchain
    from byoc_cudnn.codegen import generate
    from byoc_cudnn.codegen.regions import Region
    from byoc_cudnn.compiled import library_command

    toolchain.preload()
    chosen = dict(zip(("benchmark", "deterministic", "allow_tf32"), options, strict=True))
    problems = [problem.with_kind(kind) for kind in ConvKind]
    regions = [Region(p.kind.value, p, (), p.roles[:2], chosen) for p in problems]
    with TemporaryDirectory(prefix="relay-wgrad-") as folder:
        source, library = Path(folder, "torch.cc"), Path(folder, "torch.so")
        source.write_text(generate(regions), encoding="utf-8")
        done = subprocess.run(  # noqa: S603
            library_command(source, library), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the compiler failed for {problem}:\n{done.stderr[:4000]}")
        return tvm_ffi.load_module(str(library))
