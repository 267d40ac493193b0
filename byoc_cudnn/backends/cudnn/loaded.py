"""The library of `any_problem`: built once for a machine, then only loaded.

It lies in `cudnn-library` of the user's cache (`private_folder`).  Its name has a digest of all
that it depends on: source, compiler and its version, options with the libraries' paths, versions of
cuDNN, CUDA and TVM FFI.  It is written under another name first and then renamed, so processes that
build at the same time do no harm; and it ends with its own digest, so a damaged one is built anew.
"""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm_ffi import libinfo

from relay_wgrad.output import replacing, working_folder
from relay_wgrad.problem import ConvProblem

from ...building.compiled import library_command
from ...building.private_folder import private_folder
from ...building.toolchain import Toolchain, ToolchainError, find, preload, run_tool
from .any_problem import CONVOLUTION, arguments, source
from .check import Options
from .codegen import PLANS

_SECONDS = 600  # for the compiler, which takes ten
_DIGEST = hashlib.sha256

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
    return tvm_ffi.load_module(str(path)) if _whole(path) else _load_new(text, found, path)


def _digest(text: str, found: Toolchain) -> str:
    facts = [
        text, *found.compiler, _run([*found.compiler, "--version"]), *found.options,
        libinfo.find_libtvm_ffi(), tvm_ffi.__version__, found.cudnn.version_text,
        found.cuda.version_text, os.uname().machine,
    ]  # fmt: skip
    return _DIGEST("\0".join(facts).encode()).hexdigest()[:20]


def _load_new(text: str, found: Toolchain, path: Path | None, reason: str = "") -> Any:
    with working_folder() as folder:
        unit, made = folder / "library.cc", folder / "library.so"
        unit.write_text(text, encoding="utf-8")
        _run(library_command(unit, made, found))
        if path is not None:
            try:
                _keep(made.read_bytes(), path)
                made = path
            except OSError as error:
                reason = f"{path}: {error.strerror}"
        if reason:
            warnings.warn(
                f"cuDNN's library is built anew in each process: {reason}", RuntimeWarning,
                stacklevel=2,
            )  # fmt: skip
        return tvm_ffi.load_module(str(made))  # which stays loaded


def _keep(content: bytes, path: Path) -> None:
    if path.is_symlink():  # nothing of ours, and what it points to is not this cache's
        path.unlink()
    with replacing(path, 0o600) as made:
        made.write_bytes(content + _DIGEST(content).digest())


def _whole(path: Path) -> bool:
    """Whether a library is there, as it was written."""
    size = _DIGEST().digest_size
    try:
        content = b"" if path.is_symlink() else path.read_bytes()
    except OSError:
        return False
    return content[-size:] == _DIGEST(content[:-size]).digest()


def _run(command: Sequence[str]) -> str:
    return run_tool(command, "the compiler", _SECONDS)
