"""Objects of CUTLASS kernels: built by nvcc, once for each kernel, and kept in a private folder.

The folder is `cutlass-objects` in $RELAY_WGRAD_CACHE, else in relay-wgrad in $XDG_CACHE_HOME or
~/.cache.  What is in it is linked into programs, so it must be the user's alone.  An object's name
has its kernel and a digest of everything that it depends on: source, options, nvcc's version and
CUTLASS's.  It is written under another name first and then renamed, so it is whole or not there.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...building import nvcc
from ...building.private_folder import private_folder
from ...building.toolchain import Toolchain, ToolchainError, find
from ...codegen.linked import kernels_of
from .hopper import HOPPER
from .kernel_source import SLICES, kernel_source
from .kernels import Kernel

OLDEST = (3, 5)  # of CUTLASS's versions


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
    lines = nvcc.lacking(found)
    if cutlass is None:
        oldest = ".".join(map(str, OLDEST))
        lines.append(f"CUTLASS's headers, {oldest} or later: not found; set CUTLASS_HOME")
    return "\n".join(["a build of CUTLASS kernels needs:", *lines]) if lines else ""


def version(toolchain: Toolchain) -> str | None:
    """Of CUTLASS and of the compiler that builds its kernels; None where one of them is missing."""
    cutlass = find_cutlass()
    text = nvcc.nvcc_version(toolchain.nvcc) if toolchain.nvcc is not None else None
    built = nvcc.release(text) if text is not None else None
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
    units = [_unit(cutlass, archs, name) for archs, name in wanted]
    return nvcc.build(found.nvcc, cache_folder(environ), units, progress)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder of objects.  Raises ToolchainError as `private_folder` does."""
    return private_folder("cutlass-objects", environ)


def _unit(cutlass: Cutlass, archs: Sequence[int], name: str) -> nvcc.Unit:
    headers = ["-isystem", str(cutlass.include)]
    alone = needs_builders(name)  # Hopper's own instructions
    if alone:
        headers += ["-isystem", str(cutlass.tools)]
    options = nvcc.options(archs, *headers, exactly="90a" if alone else "")
    return nvcc.Unit(name, kernel_source(name), options, (cutlass.text,))
