"""Functions in C++ for what the host does between two steps: looks at hundreds of Python's and
PyTorch's objects (`templates/as_it_was.cc`), and a step as a node of autograd
(`templates/step_node.cc`).

A library of our own against PyTorch's headers, built once for a machine.  That takes a compiler
some 15 seconds, so nobody waits for it: it is built beside a program that is compiled for a GPU, or
beside a loop of steps, and until it is there, or where it cannot be, Python and PyTorch do the
same.  What is said here is how fast, and nothing else.  Functions are called with Python's lock
held.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import sysconfig
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..locks import lock

SOURCES = ("step_host.h", "as_it_was.cc", "step_node.cc", "step_functions.cc")
LOOKS = 40
"""Looks by Python after which the library is built: more than who tries a step has."""


class Functions(NamedTuple):
    """The library's, by their names there."""

    take_tensors: Any
    hold_tensors: Any
    hold_objects: Any
    take_tags: Any
    set_tags: Any
    hold_tags: Any
    take_cuts: Any
    cut_tensors: Any
    record: Any
    increment_versions: Any


def source() -> str:
    folder = files("relay_wgrad.torch") / "templates"
    parts = [(folder / name).read_text(encoding="utf-8") for name in SOURCES]
    # What the headers are of, which the library's name is to tell.
    return f"// PyTorch {torch.__version__}, Python {sys.version}\n".replace("\\", "") + "".join(
        parts
    )


def folders() -> tuple[Path, Path]:
    """Where PyTorch is, and Python's headers."""
    return Path(torch.__file__).parent, Path(sysconfig.get_path("include"))


def _words() -> list[str]:
    """What the compiler is told of PyTorch and Python."""
    theirs, python = folders()
    libraries = [
        str(theirs / "lib" / f"lib{name}.so") for name in ("torch_python", "torch_cpu", "c10")
    ]
    headers = (theirs / "include", theirs / "include/torch/csrc/api/include", python)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    include = [word for path in headers for word in ("-isystem", str(path))]
    return ["-std=c++20", *include, abi, *libraries]


def _lacking(found: Any) -> str:
    theirs, python = folders()
    wanted = (theirs / "include/torch/csrc/autograd/function.h", python / "Python.h")
    lines = [*found.lacking(), *(f"{path}: not there" for path in wanted if not path.is_file())]
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        lines.append("Python has no lock that all of it is called with")
    return "\n".join(lines)


class Library:
    """The functions, once they are there."""

    def __init__(self) -> None:
        self.found: Functions | str | None = None  # or why there are none; None: not yet
        self._lock = lock()
        self._thread: threading.Thread | None = None
        self._compiler: Any = None  # the process
        self._looks = 0

    def wanted(self) -> None:
        """Counts a look that they would do faster, and after some begins to build them."""
        if self._looks <= LOOKS:
            self._looks += 1
            if self._looks > LOOKS:
                self.begin()

    def begin(self) -> None:
        """Builds them, or loads them where they have been built, in a thread."""
        if self.found is None and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self.built, daemon=True)
            atexit.register(self._stop, self._thread)
            self._thread.start()

    def built(self) -> Functions | str:
        """The functions, or why there are none, when that is known."""
        with self._lock:
            if self.found is None:
                self.found = self._load()
        return self.found

    def _load(self) -> Functions | str:
        # Here: who trains on a CPU needs nothing else of `byoc_cudnn`, which takes 0.4 s to import.
        try:
            from byoc_cudnn.building.fixed_source import Standing

            standing = Standing(
                "step-library", "what the host does for a step", source, _lacking, is_host=True,
                words=_words, begun=self._begun,
            )  # fmt: skip
            function = standing.module()["relay_wgrad_functions"]
            function.release_gil = False
            made = ctypes.cast(function(), ctypes.py_object).value
            return Functions(**made)
        except Exception as error:  # of whatever kind: there is another way
            return " ".join(str(error).split())[:300]

    def _begun(self, compiler: Any) -> None:
        self._compiler = compiler

    def _stop(self, thread: threading.Thread) -> None:
        """At the process's end: what is half built goes, with its folder."""
        if self._compiler is not None and thread.is_alive():
            with contextlib.suppress(OSError):
                os.killpg(self._compiler.pid, signal.SIGKILL)
            thread.join(5)


shared = Library()
begin, built, wanted = shared.begin, shared.built, shared.wanted


def functions() -> Functions | None:
    """The functions; None where there are none yet."""
    found = shared.found
    return None if isinstance(found, str) else found


def reason() -> str:
    """Why Python does what they would; empty where it does not, or does so for now."""
    found = shared.found
    return f"the host's part is done by Python: {found}" if isinstance(found, str) else ""
