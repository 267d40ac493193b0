"""Our own kernels in this process without a compiled module: each built once, then loaded.

A kernel's object is the one that modules are linked with; beside it lies a library of it alone.
What calls it is a library of its own (`building.standing`), in `direct-library` of the cache.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any

from relay_wgrad.output import working_folder
from relay_wgrad.problem import ConvProblem

from ...building.compilers import missing
from ...building.standing import Standing
from ...building.toolchain import Toolchain, find, run_tool
from .any_problem import CONVOLUTION, arguments, source
from .check import Options
from .codegen import PLANS
from .kernels import Kernel
from .model import choose
from .objects import objects_of

LIBRARY = Standing("direct-library", "cuda_direct's library", source, missing)
_SECONDS = 600
_ENTRY = "relay_wgrad_kernel"
_STUB = """\
extern "C" int %s();
extern "C" __attribute__((visibility("default"))) void* relay_wgrad_kernel() {
  return reinterpret_cast<void*>(%s);
}
"""

_lock = threading.Lock()
_addresses: dict[tuple[str, tuple[int, ...]], int] = {}


def convolution(problem: ConvProblem, options: Options, arch: int) -> Any:
    """A function of the problem's two operands and its result, for a GPU as nvcc numbers it.

    Tensors of other numbers of images are right too; other sizes are refused by some kernels.

    Raises
    ------
    ValueError : where no kernel serves the problem, or not the one that the options name.
    ToolchainError : if something has to be built, and what that needs is missing or fails.
    """
    kernel = choose(problem, (), options, arch)
    module = LIBRARY.module()
    return module[CONVOLUTION](*arguments(problem, kernel, address(kernel, arch)))


def plans() -> list[str]:
    """The kernels that have run in this process, as `Library.plans` says."""
    return [] if LIBRARY.loaded is None else str(LIBRARY.loaded[PLANS]()).splitlines()


def address(kernel: Kernel, *archs: int) -> int:
    """Of a kernel's function in this process.  Raises ToolchainError as `convolution` does."""
    key = (kernel.name, archs)
    if key not in _addresses:
        found = find()
        (made,) = objects_of([(archs, kernel.name)], found)
        library = linked(made, kernel.name, found)
        with _lock:
            _addresses[key] = entry(library)
    return _addresses[key]


def entry(library: Path) -> int:
    """The address of the function that a library of `linked` is made of; it stays loaded."""
    given = ctypes.CDLL(str(library))[_ENTRY]  # another object each time it is asked for
    given.restype = ctypes.c_void_p
    return int(given())


def linked(made: Path, name: str, found: Toolchain) -> Path:
    """The library of an object, beside it."""
    path = made.with_suffix(".so")
    if not path.is_file() or path.is_symlink():
        with working_folder(made.parent) as folder:
            stub, library = folder / "stub.cc", folder / "kernel.so"
            stub.write_text(_STUB % (name, name), encoding="utf-8")
            cuda = found.cuda.shared_library
            assert cuda is not None
            command = [
                *found.compiler, "-O1", "-fPIC", "-shared", str(stub), str(made), "-o",
                str(library), "-Xlinker", "-rpath", "-Xlinker", str(cuda.parent), str(cuda),
            ]  # fmt: skip
            run_tool(command, f"{name}: the compiler", _SECONDS)
            library.replace(path)
    return path


def _after_fork() -> None:
    """Another thread may have held the lock, and the child has only this one."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
