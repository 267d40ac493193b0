"""Libraries of a source that is always the same: built once for a machine, then only loaded.

A library lies in a folder of the user's cache (`private_folder`).  Its name has a digest of all
that it depends on: source, compiler and its version, options with the libraries' paths, versions of
cuDNN, CUDA and TVM FFI.  It is written under another name first and then renamed, so processes that
build at the same time do no harm; and it ends with its own digest, so a damaged one is built anew.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm_ffi

from relay_wgrad.building.disk_cache import key_of, read, write
from relay_wgrad.locks import lock
from relay_wgrad.output import working_folder

from .link import host_facts, shared_command
from .private_folder import private_folder
from .toolchain import Toolchain, ToolchainError, find, preload, run_tool

_SECONDS = 600  # for the compiler, which takes five
_FASTER = "-O1"  # than -O2 to compile by a third; a call spends its time in CUDA and cuDNN


@dataclass
class Standing:
    """Such a library, and what this process has loaded of it.

    folder : of the cache.  what : whose it is, in words.  source : makes its text.
    lacking : what a toolchain lacks to build it, as a message; empty if nothing.
    is_host : whether it is nothing of CUDA's, which it is then built and linked without.
    words : makes what the compiler is told besides.
    begun : is given the compiler's process, which another thread may end.
    """

    folder: str
    what: str
    source: Callable[[], str]
    lacking: Callable[[Toolchain], str]
    is_host: bool = False
    words: Callable[[], Sequence[str]] = list
    begun: Callable[[Any], None] | None = None
    loaded: Any = None
    _lock: Any = field(default_factory=lock, repr=False)

    def module(self) -> Any:
        """The library, loaded by the first call.  Raises ToolchainError as `load` does."""
        with self._lock:
            if self.loaded is None:
                self.loaded = self.load()
        return self.loaded

    def load(self, environ: Mapping[str, str] | None = None) -> Any:
        """The library as a module: that of the cache, else it is built.

        Where the cache cannot be used, this warns and builds it for this process alone.

        Raises ToolchainError if it has to be built, and something for that is missing or fails.
        """
        environ = os.environ if environ is None else environ
        found = find(environ)
        if self.is_host:
            found = found.without_cuda()
        if text := self.lacking(found):
            raise ToolchainError(text)
        if not self.is_host:
            preload(found)
        source = self.source()
        name = f"{digest(source, found, self.words())}.so"
        try:
            path = private_folder(self.folder, environ) / name
        except ToolchainError as error:
            return self._load_new(source, found, None, str(error))
        if read(path) is not None:
            return tvm_ffi.load_module(str(path))
        return self._load_new(source, found, path)

    def _load_new(self, text: str, found: Toolchain, path: Path | None, reason: str = "") -> Any:
        with working_folder() as folder:
            unit, made = folder / "library.cc", folder / "library.so"
            unit.write_text(text, encoding="utf-8")
            _run([*shared_command(unit, made, found), *self.words(), _FASTER], self.begun)
            if path is not None:
                try:
                    write(path, made.read_bytes())
                    made = path
                except OSError as error:
                    reason = f"{path}: {error.strerror}"
            if reason:
                warnings.warn(
                    f"{self.what} is built anew in each process: {reason}", RuntimeWarning,
                    stacklevel=3,
                )  # fmt: skip
            return tvm_ffi.load_module(str(made))  # which stays loaded


def digest(text: str, found: Toolchain, words: Sequence[str] = ()) -> str:
    """Of a source and all else that its library depends on."""
    return key_of([text, _FASTER, *words, *host_facts(found)])[:20]


def _run(command: Sequence[str], begun: Callable[[Any], None] | None = None) -> str:
    return run_tool(command, "the compiler", _SECONDS, begun=begun)
