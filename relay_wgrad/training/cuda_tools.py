"""What of CUDA a GPU's step is compiled and run with: the compiler of kernels, the runtime."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec

from byoc_cudnn.building import toolchain

from . import cudart

_COMPILER = "TVM_CUDA_COMPILE_MODE"


@contextlib.contextmanager
def cuda_compiler() -> Iterator[None]:
    """Within it TVM compiles CUDA kernels with what is here: NVRTC's bindings, or else nvcc.

    TVM wants the first unless it is told, and looks for nvcc on PATH alone.  What the user has set
    stays.
    """
    before = {name: os.environ.get(name) for name in (_COMPILER, "PATH")}
    nvcc = toolchain.find().nvcc
    if not has_nvrtc() and nvcc is not None:
        os.environ.setdefault(_COMPILER, "nvcc")
        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{nvcc.parent}"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def has_nvrtc() -> bool:
    """Whether NVRTC's Python bindings are here."""
    return find_spec("cuda") is not None and find_spec("cuda.bindings") is not None


def cuda_runtime() -> cudart.Runtime:
    """The CUDA runtime that TVM's has loaded.  Raises ValueError where there is none."""
    found = toolchain.find().cuda.shared_library
    names = [found.name, str(found)] if found is not None else []
    # The one that is in the process, first: TVM's CUDA runtime has loaded it.
    for name in [*names, "libcudart.so.13", "libcudart.so.12"]:
        with contextlib.suppress(OSError):
            return cudart.Runtime(name)
    raise ValueError("device 'cuda' cannot be trained on: libcudart cannot be loaded")
