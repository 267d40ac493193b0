"""What of CUDA a GPU's step is compiled and run with: the compiler of kernels, the runtime."""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec

from byoc_cudnn.building import toolchain
from byoc_cudnn.building.shared_patch import InUse

from . import cudart

_COMPILER = "TVM_CUDA_COMPILE_MODE"


def _enter(undo: contextlib.ExitStack) -> None:
    nvcc = toolchain.find().nvcc
    if has_nvrtc() or nvcc is None:
        return
    path = os.environ.get("PATH")
    changed = {"PATH": f"{os.defpath if path is None else path}{os.pathsep}{nvcc.parent}"}
    if _COMPILER not in os.environ:
        changed[_COMPILER] = "nvcc"
    for name, value in changed.items():
        before = os.environ.get(name)
        os.environ[name] = value
        if before is None:
            undo.callback(os.environ.pop, name, None)
        else:
            undo.callback(os.environ.__setitem__, name, before)


_in_use = InUse(_enter)


def cuda_compiler() -> contextlib.AbstractContextManager[None]:
    """Within it TVM compiles CUDA kernels with what is here: NVRTC's bindings, or else nvcc.

    TVM wants the first unless it is told, and looks for nvcc on PATH alone.  What the user has set
    stays.
    """
    return _in_use()


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
