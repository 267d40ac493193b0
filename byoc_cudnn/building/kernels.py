"""TVM's CUDA kernels, compiled once and kept.

TVM has all kernels of a module compiled as one text by `tvm.support.nvcc.compile_cuda`, with NVRTC
or nvcc, each time that the module is built.  Within `kept_kernels` what it gave is kept
(`disk_cache`) by all that it depends on: the text and the other arguments, the GPU, TVM's own file,
the variables that it and the compilers read, and which compiler, of which version, with which
headers.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm.support import nvcc as stock

from relay_wgrad.building.disk_cache import DiskCache, key_of

from .nvcc import nvcc_version
from .shared_patch import InUse

_VARIABLES = ("TVM_CUDA", "TVM_KERNEL", "NVCC_", "NVRTC_", "CUDA_")
_PATHS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH")
_HEADERS = ("cuda_runtime.h", "cuda_fp16.hpp", "cuda_bf16.hpp", "cuda_fp8.hpp", "mma.h")
_DUMPS = "cuda.kernels_output_dir"


def _enter(undo: contextlib.ExitStack) -> None:
    before = stock.compile_cuda
    if _is_tvms(before):
        stock.compile_cuda = _keeping(before)
    undo.callback(setattr, stock, "compile_cuda", before)


_in_use = InUse(_enter)


def kept_kernels() -> contextlib.AbstractContextManager[None]:
    """Within it TVM's compiler of CUDA is asked for what is not kept, and for nothing else.

    A compiler that somebody else has put in its place stays; then nothing is kept.
    """
    return _in_use()


def _is_tvms(function: Any) -> bool:
    return inspect.isfunction(function) and function.__globals__ is vars(stock)


def _keeping(inner: Callable[..., Any]) -> Callable[..., Any]:
    def compile_cuda(*args: Any, **named: Any) -> Any:
        facts = _facts(inspect.signature(inner).bind(*args, **named))
        if facts is None:
            return inner(*args, **named)
        kept, key = DiskCache(), key_of(["kernels", *facts])
        content = kept.get(key)
        if content is None:
            content = bytes(inner(*args, **named))
            kept.put(key, content)
        return bytearray(content)

    return compile_cuda


def _facts(given: inspect.BoundArguments) -> list[str] | None:
    """All that a result depends on; None where that is not known, or files are to be written."""
    given.apply_defaults()
    named = given.arguments
    text = str(named.get("code", ""))
    config = tvm.transform.PassContext.current().config
    dumped = _DUMPS in config or "TVM_KERNEL_DUMP" in os.environ or bool(named.get("path_target"))
    if dumped or "nvshmem" in text:  # whose library is linked
        return None
    kind = named.get("compiler")
    try:
        compiler = {"nvcc": _nvcc, "nvrtc": _nvrtc}.get(str(kind), lambda: None)()
        arch = stock.get_target_compute_version(tvm.target.Target.current(allow_none=True))
    except (ValueError, OSError):
        return None  # TVM says it better; or a file that has been loaded is gone
    if compiler is None:
        return None
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items())
                 if name.startswith(_VARIABLES) or name in _PATHS]  # fmt: skip
    own = [tvm.__version__, Path(stock.__file__).read_text(encoding="utf-8")]
    arguments = [f"{name}={value!r}" for name, value in sorted(named.items())]
    return [*arguments, str(arch), *own, *variables, *compiler]


def _nvcc() -> list[str] | None:
    """Of the nvcc that TVM runs, which is the one on PATH and has its own headers."""
    found = shutil.which("nvcc")
    version = nvcc_version(Path(found)) if found else None
    return [_stamp(Path(str(found))), version] if version else None


def _nvrtc() -> list[str] | None:
    """Of the NVRTC that its bindings have loaded, the library's file, and of the headers."""
    try:
        version = str(importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion())
        headers = _headers(Path(stock.find_cuda_path()))
    except (ImportError, RuntimeError):
        return None
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.partition("/")[2] for line in mapped if "libnvrtc" in line}
    files = [*(Path("/", path) for path in sorted(paths)), *headers]
    return [version, *map(_stamp, files)] if paths and headers else None


def _headers(home: Path) -> list[Path]:
    folders = [home / "include", *sorted(home.glob("targets/*/include"))]
    paths = [folder / name for folder in folders for name in _HEADERS]
    return [path for path in paths if path.is_file()]


def _stamp(path: Path) -> str:
    """Which file it is, and which version of it."""
    real = path.resolve()
    info = real.stat()
    return f"{path} {real} {info.st_size} {info.st_mtime_ns}"
