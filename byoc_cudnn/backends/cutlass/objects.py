"""Objects of CUTLASS kernels: built by nvcc, once for each kernel, and kept in a private folder.

The folder is `cutlass-objects` in $RELAY_WGRAD_CACHE, else in relay-wgrad in $XDG_CACHE_HOME or
~/.cache.  What is in it is linked into programs, so it must be the user's alone.  An object's name
has its kernel and a digest of everything that it depends on: source, options, nvcc's version and
CUTLASS's.  It is written under another name first and then renamed, so it is whole or not there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from relay_wgrad.output import working_folder

from ...building.private_folder import private_folder
from ...building.toolchain import Toolchain, ToolchainError, find, run_tool
from .codegen import kernels_of
from .hopper import HOPPER
from .kernel_source import SLICES, kernel_source
from .kernels import Kernel

INSTALL = "pip install 'relay-wgrad[cutlass]'"
OLDEST = (3, 5)  # of CUTLASS's versions
_SECONDS = 1800  # for one kernel; they take ten


@dataclass(frozen=True)
class Cutlass:
    """CUTLASS's headers."""

    include: Path
    version: tuple[int, ...]

    @property
    def text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def tools(self) -> Path:
        """The utilities' headers, which those of the 3.x convolutions include."""
        return self.include.parent / "tools" / "util" / "include"

    @property
    def has_builders(self) -> bool:
        """Whether 3.x convolutions can be built: TVM's copy lacks a part of them."""
        builders = self.include / "cutlass/conv/collective/builders/sm90_gmma_builder.inl"
        return builders.is_file() and (self.tools / "cutlass/util/packed_stride.hpp").is_file()


def needs_builders(name: str) -> bool:
    """Whether a kernel is one of the 3.x API."""
    return name != SLICES and Kernel.parse(name).algorithm in HOPPER


def find_cutlass(environ: Mapping[str, str] | None = None) -> Cutlass | None:
    """The headers that CUTLASS_HOME names, those of NVIDIA's package, or those in TVM's wheel."""
    environ = os.environ if environ is None else environ
    places = []
    if home := environ.get("CUTLASS_HOME"):
        places.append(Path(home).expanduser() / "include")
    for module, parts in (
        ("cutlass_library", "source/include"),
        ("tvm", "3rdparty/cutlass/include"),
    ):
        places += [folder / parts for folder in _folders(module)]
    for include in places:
        header = include / "cutlass" / "version.h"
        if (include / "cutlass" / "cutlass.h").is_file() and header.is_file():
            text = header.read_text(encoding="utf-8", errors="replace")
            found = [re.search(rf"#define CUTLASS_{x} (\d+)", text) for x in ("MAJOR", "MINOR")]
            version = tuple(int(match[1]) for match in found if match)
            if version >= OLDEST:
                return Cutlass(include.absolute(), version)
    return None


def _folders(module: str) -> list[Path]:
    """Where a package lies; finding it imports nothing."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return []
    places = spec.submodule_search_locations if spec else None
    return [Path(place) for place in places or ()]


def missing(found: Toolchain, cutlass: Cutlass | None) -> str:
    """What a build of kernels lacks and how to get it, as one message; empty if nothing does."""
    lines = found.lacking(found.cuda)
    if found.nvcc is None:
        lines.append(f"nvcc: not found; {INSTALL}, or set CUDA_HOME")
    elif found.cuda.version and (version := nvcc_version(found.nvcc)) is not None:
        major = release(version)
        if major and major[0] != found.cuda.version[0]:
            lines.append(
                f"nvcc of CUDA {found.cuda.version[0]}, as the runtime is: {found.nvcc} is of"
                f" CUDA {major[0]}.{major[1]}; {INSTALL}, or set CUDA_HOME"
            )
    if cutlass is None:
        oldest = ".".join(map(str, OLDEST))
        lines.append(f"CUTLASS's headers, {oldest} or later: not found; set CUTLASS_HOME")
    return "\n".join(["a build of CUTLASS kernels needs:", *lines]) if lines else ""


@lru_cache(maxsize=8)
def nvcc_version(nvcc: Path) -> str | None:
    """What `nvcc --version` says; None if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603
            [str(nvcc), "--version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def release(text: str) -> tuple[int, int] | None:
    """(major, minor) of CUDA, of what `nvcc_version` gave."""
    match = re.search(r"release (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def version(toolchain: Toolchain) -> str | None:
    """Of CUTLASS and of the compiler that builds its kernels; None where one of them is missing."""
    cutlass = find_cutlass()
    nvcc = nvcc_version(toolchain.nvcc) if toolchain.nvcc is not None else None
    built = release(nvcc) if nvcc is not None else None
    if cutlass is None or built is None:
        return None
    return f"{cutlass.text} nvcc {built[0]}.{built[1]}"


def objects(
    source: str,
    toolchain: Toolchain | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """The objects of all kernels that a generated source names, built where they are not there.

    None for a source without kernels.  `progress` is told how many of how many are there.

    Raises
    ------
    ToolchainError : for what is missing, how to get it; for a cache folder that is not private; or
        with nvcc's words, if it fails.
    """
    wanted = kernels_of(source)
    if not wanted:
        return []
    environ = os.environ if environ is None else environ
    found = find() if toolchain is None else toolchain
    cutlass = find_cutlass(environ)
    if text := missing(found, cutlass):
        raise ToolchainError(text)
    assert cutlass is not None
    if not cutlass.has_builders and any(needs_builders(name) for _, name in wanted):
        raise ToolchainError(
            f"{cutlass.include}: without the 3.x convolutions, which wgmma needs; pip install"
            " nvidia-cutlass, or set CUTLASS_HOME to a checkout of CUTLASS"
        )
    assert found.nvcc is not None
    folder = cache_folder(environ)
    builder = _Builder(found.nvcc, cutlass, folder)
    made = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for path in pool.map(builder.build, wanted):
            made.append(path)
            if progress is not None:
                progress(len(made), len(wanted))
    return made


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder of objects.  Raises ToolchainError as `private_folder` does."""
    return private_folder("cutlass-objects", environ)


@dataclass(frozen=True)
class _Builder:
    nvcc: Path
    cutlass: Cutlass
    folder: Path

    def command(self, archs: Sequence[int], name: str) -> list[str]:
        """nvcc's, without source and output.

        Machine code for each GPU, and PTX for GPUs newer than the last, which Hopper's own
        instructions have not.
        """
        *older, last = archs
        codes = [f"arch=compute_{arch},code=sm_{arch}" for arch in older]
        codes.append(f"arch=compute_{last},code=[sm_{last},compute_{last}]")
        headers = ["-isystem", str(self.cutlass.include)]
        if needs_builders(name):
            codes = ["arch=compute_90a,code=sm_90a"]
            headers += ["-isystem", str(self.cutlass.tools)]
        return [
            str(self.nvcc), "-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr",
            *(word for code in codes for word in ("-gencode", code)),
            # Nothing of an object is for others, and headers' warnings are not ours.
            "-Xcompiler", "-fPIC,-fvisibility=hidden,-w", "-w", *headers,
        ]  # fmt: skip

    def build(self, wanted: tuple[tuple[int, ...], str]) -> Path:
        archs, name = wanted
        source, command = kernel_source(name), self.command(archs, name)
        facts = [source, *command, nvcc_version(self.nvcc) or "", self.cutlass.text]
        digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]
        path = self.folder / f"{name}-{digest}.o"
        if path.is_file() and not path.is_symlink():
            return path
        with working_folder(self.folder) as work:
            unit, made = work / "kernel.cu", work / "kernel.o"
            unit.write_text(source, encoding="utf-8")
            _run([*command, "-c", str(unit), "-o", str(made)], name)
            made.replace(path)
        return path


def _run(command: Sequence[str], name: str) -> None:
    run_tool(command, f"{name}: nvcc", _SECONDS)
