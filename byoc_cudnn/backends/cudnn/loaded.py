"""The library of `any_problem`: built once for a machine, then only loaded.

It lies in `cudnn-library` of the user's cache (`private_folder`).  Its name has a digest of all
that it depends on: source, compiler and its version, options with the libraries' paths, versions of
cuDNN, CUDA and TVM FFI.  It is written under another name first and then renamed, so processes that
build at the same time do no harm; and it ends with its own digest, so a damaged one is built anew.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm_ffi

from relay_wgrad.output import working_folder
from relay_wgrad.problem import ConvProblem

from ...building.compiled import library_command
from ...building.kept import key_of, read, write
from ...building.link import host_facts
from ...building.private_folder import private_folder
from ...building.toolchain import Toolchain, ToolchainError, find, preload, run_tool
from .any_problem import CONVOLUTION, arguments, source
from .check import Options
from .codegen import PLANS

_SECONDS = 600  # for the compiler, which takes ten

_lock = threading.Lock()
loaded: Any = None
"""The library as this process has it, from the first call on."""


def convolution(problem: ConvProblem, options: Options) -> Any:
    """A function of the problem's two operands and its result: tensors of any sizes that fit.

    Equal problems share the plans that were found for them.

    Raises
    ------
    ValueError : for what cuDNN has not: asymmetric padding, other layouts or dtypes.
    ToolchainError : if the library has to be built, and something for that is missing or fails.
    """
    global loaded
    with _lock:
        if loaded is None:
            loaded = load()
    return loaded[CONVOLUTION](*arguments(problem, options))


def plans() -> list[str]:
    """What was chosen for each problem that has run in this process, as `Library.plans` says."""
    return [] if loaded is None else str(loaded[PLANS]()).splitlines()


def _after_fork() -> None:
    """Another thread may have held the lock, and the child has only this one."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def load(environ: Mapping[str, str] | None = None) -> Any:
    """The library as a module: that of the cache, else it is built.

    Where the cache cannot be used, this warns and builds it for this process alone.

    Raises ToolchainError as `convolution` does.
    """
    environ = os.environ if environ is None else environ
    found = find(environ).require()
    preload(found)
    text = source()
    name = f"{_digest(text, found)}.so"
    try:
        path = private_folder("cudnn-library", environ) / name
    except ToolchainError as error:
        return _load_new(text, found, None, str(error))
    if read(path) is not None:
        return tvm_ffi.load_module(str(path))
    return _load_new(text, found, path)


def _digest(text: str, found: Toolchain) -> str:
    return key_of([text, *host_facts(found)])[:20]


def _load_new(text: str, found: Toolchain, path: Path | None, reason: str = "") -> Any:
    with working_folder() as folder:
        unit, made = folder / "library.cc", folder / "library.so"
        unit.write_text(text, encoding="utf-8")
        _run(library_command(unit, made, found))
        if path is not None:
            try:
                write(path, made.read_bytes())
                made = path
            except OSError as error:
                reason = f"{path}: {error.strerror}"
        if reason:
            warnings.warn(
                f"cuDNN's library is built anew in each process: {reason}", RuntimeWarning,
                stacklevel=2,
            )  # fmt: skip
        return tvm_ffi.load_module(str(made))  # which stays loaded


def _run(command: Sequence[str]) -> str:
    return run_tool(command, "the compiler", _SECONDS)
