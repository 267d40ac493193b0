"""Kernels as XLA's foreign functions: one target for each problem of a process, by its digest.

A kernel is built when JAX lowers the call, so that nothing is compiled or tuned while a program
runs.  On CPUs XLA calls from threads of its own pool, of which TVM would make a pool of workers
each: `threads.run` hands the work to those that stay.
"""

from __future__ import annotations

import atexit
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import jax
import tvm
import tvm_ffi

from .. import threads
from ..problem import ConvProblem
from ..registry import is_registered, register
from .records import Options

PLATFORMS = ("cpu", "cuda")
_COMPARED = ("cuda_direct",)  # with cuDNN, where both take a problem
_DETERMINISTIC = False
FFI_PLATFORM = {"cpu": "cpu", "cuda": "gpu"}


class UnsupportedError(ValueError):
    """No kernel of this package takes a problem on a platform."""


_lock = threading.RLock()
_named: dict[Any, str] = {}


def named(problem: ConvProblem, options: Options, platform: str) -> str:
    """The target's name, of a kernel that is built and registered.

    Raises UnsupportedError for what is `lacking`, ModuleNotFoundError without jax-tvm-ffi.
    """
    key = (problem, options.allow_tf32 and platform == "cuda", platform)
    with _lock:
        if key not in _named:
            if not is_registered():
                register()
            if reason := lacking(problem, platform):
                raise UnsupportedError(reason)
            import jax_tvm_ffi

            text = f"{problem.repro()} {key[1]} {platform}"
            name = f"relay_wgrad.{hashlib.sha256(text.encode()).hexdigest()[:24]}"
            kernel, may_be_recorded = (
                (_cpu(problem), False) if platform == "cpu" else _cuda(problem, options)
            )
            try:
                jax_tvm_ffi.register_ffi_target(
                    name, kernel, platform=FFI_PLATFORM[platform], allow_cuda_graph=may_be_recorded
                )
            except RuntimeError as error:  # it has room for 1,024 in a process
                raise UnsupportedError(str(error)) from error
            _named[key] = name
        return _named[key]


def lacking(problem: ConvProblem, platform: str) -> str:
    """Why a platform has no kernel of this package's for a problem, or ""."""
    if platform == "cpu":
        return ""
    from byoc_cudnn.backends.cudnn import check as cudnn
    from byoc_cudnn.building import toolchain

    if missing := toolchain.find().missing():
        return f"a build for cuDNN needs {missing}"
    return cudnn.check(problem, "").reason


def builds(problem: ConvProblem, options: Options) -> list[tuple[str, Callable[[], Any]]]:
    """What `named` would build of a problem on CUDA: (what, which others may have in common; what
    builds it)."""
    from byoc_cudnn.backends.cuda_direct import loaded as direct
    from byoc_cudnn.backends.cudnn import loaded as cudnn
    from byoc_cudnn.tuning import single_convolution

    kernels = single_convolution.kernels(problem, _compared(options), 0)
    libraries = [cudnn.LIBRARY, *([single_convolution.TIMER, direct.LIBRARY] if kernels else [])]
    return [*((library.folder, library.module) for library in libraries), *kernels]


def _compared(options: Options) -> dict[str, dict[str, Any]]:
    given = {"deterministic": _DETERMINISTIC, "allow_tf32": options.allow_tf32}
    return dict.fromkeys(_COMPARED, given)


def _cpu(problem: ConvProblem) -> tvm_ffi.Function:
    from legalize import cpu

    from ..building.disk_cache import DiskCache
    from ..building.program import compiled_functions

    serial = problem.flop < threads.SERIAL_FLOP
    target = cpu.host_target(1 if serial else None)
    module = tvm.IRModule({"main": cpu.prim_func(problem, target)})
    kernel = compiled_functions(module, target, DiskCache())["main"]
    if serial:
        return tvm_ffi.convert(kernel)

    def called(first: Any, second: Any, out: Any) -> None:
        with ending.call():
            threads.run(kernel, first, second, out)

    return tvm_ffi.convert(called)


class _Ending:
    """A process that ends waits for the programs that it has begun.

    JAX returns before a program has run, and a thread of XLA's that calls Python when Python is
    gone is taken away within C++, which ends in `std::terminate`.  JAX does not say which programs
    run: results that somebody has are waited for, then until no call has begun for a while.
    """

    QUIET, MOST = 0.1, 5.0  # seconds

    def __init__(self) -> None:
        self._lock, self._count, self._last = threading.Lock(), 0, 0.0

    @contextmanager
    def call(self) -> Iterator[None]:
        with self._lock:
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                self._last = time.monotonic()

    def wait(self) -> None:
        if not self._last and not self._count:
            return
        with suppress(Exception):  # of a program that failed
            jax.block_until_ready(jax.live_arrays())
        until = time.monotonic() + self.MOST
        while time.monotonic() < until:
            with self._lock:
                if not self._count and time.monotonic() - self._last > self.QUIET:
                    return
            time.sleep(0.01)


ending = _Ending()
atexit.register(ending.wait)


def _cuda(problem: ConvProblem, options: Options) -> tuple[tvm_ffi.Function, bool]:
    """(cuDNN's, or that of another backend which is faster on this GPU, as measured once; whether
    XLA may record its calls in a command buffer)."""
    from byoc_cudnn.backends.cudnn import check as cudnn
    from byoc_cudnn.backends.cudnn.loaded import convolution
    from byoc_cudnn.tuning import single_convolution

    made = cudnn.Options(
        benchmark=True, deterministic=_DETERMINISTIC, allow_tf32=options.allow_tf32
    )
    base = single_convolution.Base(cudnn.NAME, asdict(made), convolution(problem, made))
    device = tvm.cuda(0)
    chosen = single_convolution.choose(problem, base, _compared(options), 0)
    # Its plan is found, and its workspace made, before a program runs.
    tensors = [tvm.runtime.empty(problem.shape(r), problem.dtype(r), device) for r in problem.roles]
    with tvm_ffi.use_raw_stream(device, 0):  # the one that `sync` waits for, whoever set another
        chosen.call(*tensors)
        device.sync()
    return tvm_ffi.convert(chosen.call), _may_be_recorded(chosen.call, tensors, device)


def _may_be_recorded(call: Any, tensors: list[Any], device: Any) -> bool:
    """Whether a call gives its stream kernels alone.  Where it has a workspace a graph of it would
    take memory, and CUDA refuses such a graph within that of a command buffer."""
    from ..training import cudart
    from ..training.cuda_tools import cuda_runtime

    runtime = cuda_runtime()
    stream = cudart.Stream(runtime)
    try:
        with tvm_ffi.use_raw_stream(device, stream.handle):
            return not cudart.takes_memory(runtime, stream, lambda: call(*tensors))
    except RuntimeError:  # what it does no graph can hold
        return False
