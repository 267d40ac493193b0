"""Objects of our own kernels: by nvcc or NVRTC, built once and kept in a private folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...building import nvrtc
from ...building.compilers import compiler
from ...building.private_folder import private_folder
from ...building.toolchain import Toolchain, ToolchainError, find
from ...codegen.linked import kernels_of
from .kernels import Kernel


def version(toolchain: Toolchain) -> str | None:
    """Of the compiler that builds the kernels; None where there is none."""
    try:
        return compiler(toolchain).version
    except (ToolchainError, ValueError):
        return None


def objects(
    source: str,
    toolchain: Toolchain | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """The objects of all kernels that a generated source names, built where they are not there.

    They are kept in the cache's folder `direct-objects`.

    Raises ToolchainError for what is missing, how to get it; for a cache folder that is not
    private; or with the compiler's words, if it fails.
    """
    wanted = kernels_of(source)
    return objects_of(wanted, toolchain, environ, progress) if wanted else []


def objects_of(
    wanted: Sequence[tuple[tuple[int, ...], str]],
    toolchain: Toolchain | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """The objects of kernels, each with the GPUs that it has machine code for.

    Raises ToolchainError as `objects` does.
    """
    found = find() if toolchain is None else toolchain
    environ = os.environ if environ is None else environ
    made = compiler(found, environ)
    units = [nvrtc.Unit(name, Kernel.parse(name).source(), archs) for archs, name in wanted]
    return made.build(found, private_folder("direct-objects", environ), units, progress)
