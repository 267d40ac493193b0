"""Who compiles our own convolution kernels: nvcc, or NVRTC where there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import nvcc, nvrtc
from .toolchain import Toolchain, ToolchainError

VARIABLE = "RELAY_WGRAD_KERNELS_BY"
_NAMES = ("nvcc", "nvrtc")


@dataclass(frozen=True)
class Compiler:
    """nvcc, or NVRTC (`rtc`).  version : as measurements have it, "nvcc 13.0"."""

    version: str
    rtc: nvrtc.Nvrtc | None = None

    def build(
        self,
        found: Toolchain,
        folder: Path,
        units: Sequence[nvrtc.Unit],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Path]:
        """The objects of units in a folder.  Raises ToolchainError with the compiler's words."""
        if self.rtc is not None:
            return nvrtc.build(self.rtc, found, folder, units, progress)
        assert found.nvcc is not None
        given = [nvcc.Unit(u.name, u.source, nvcc.options(u.archs)) for u in units]
        return nvcc.build(found.nvcc, folder, given, progress)


def compiler(found: Toolchain, environ: Mapping[str, str] | None = None) -> Compiler:
    """nvcc if all that it needs is there, else NVRTC; $RELAY_WGRAD_KERNELS_BY names one of them.

    Raises ToolchainError for what is missing, how to get it; ValueError for another name.
    """
    environ = os.environ if environ is None else environ
    wish = environ.get(VARIABLE, "").strip()
    if wish and wish not in _NAMES:
        raise ValueError(f"{VARIABLE} must be nvcc or nvrtc, got {wish!r}")
    lines = nvcc.lacking(found) if wish != "nvrtc" else found.lacking(found.cuda)
    if not lines and wish != "nvrtc":
        assert found.nvcc is not None
        built = nvcc.release(nvcc.nvcc_version(found.nvcc) or "")
        return Compiler("nvcc" if built is None else f"nvcc {built[0]}.{built[1]}")
    if wish != "nvcc" and not found.lacking(found.cuda):
        rtc = nvrtc.find(environ)
        wanted = found.cuda.version[:1]
        if rtc is not None and rtc.version[:1] == (wanted or rtc.version[:1]):
            return Compiler(f"nvrtc {rtc.version[0]}.{rtc.version[1]}", rtc)
        what = "not found" if rtc is None else f"{rtc.path} is of CUDA {rtc.version[0]}"
        lines.append(f"or NVRTC of the runtime's CUDA: {what}; {nvrtc.INSTALL}")
    raise ToolchainError("\n".join(["a build of CUDA kernels needs:", *lines]))


def missing(found: Toolchain) -> str:
    """What a build lacks and how to get it, as one message; empty if nothing."""
    try:
        compiler(found)
    except (ToolchainError, ValueError) as error:
        return str(error)
    return ""


def described(found: Toolchain) -> str:
    """Who would compile, or that nobody can."""
    try:
        made = compiler(found)
    except ValueError as error:
        return str(error)
    except ToolchainError:
        return "neither nvcc nor NVRTC was found"
    where = found.nvcc if made.rtc is None else made.rtc.path
    return f"{made.version} ({where})"
