"""Kernels' objects in this process without a compiled module: a library of each, its address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from relay_wgrad.locks import lock
from relay_wgrad.output import working_folder

from .toolchain import Toolchain, find, run_tool

_SECONDS = 600
_ENTRY = "relay_wgrad_kernel"
_STUB = """\
extern "C" int %s();
extern "C" __attribute__((visibility("default"))) void* relay_wgrad_kernel() {
  return reinterpret_cast<void*>(%s);
}
"""

_lock = lock()
_locks: dict[tuple[str, Hashable], Any] = {}  # one of each: threads that want the same wait
_addresses: dict[tuple[str, Hashable], int] = {}


def entry_of(name: str, variant: Hashable, make: Callable[[Toolchain], Path]) -> int:
    """The address of an object's function in this process; `make` gives the object's file.

    variant : what objects of one name differ in.  Raises ToolchainError as `make` does, or with the
    compiler's words.
    """
    key = (name, variant)
    with _lock:
        mine = _locks.setdefault(key, lock())
    with mine:
        if key not in _addresses:
            found = find()
            _addresses[key] = entry(linked(make(found), name, found))
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
