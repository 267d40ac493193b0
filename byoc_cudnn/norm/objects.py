"""Objects of the kernels that a source names, kept in the cache's folder `norm-objects`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ..building import nvcc
from ..building.private_folder import private_folder
from ..building.toolchain import Toolchain, ToolchainError, find
from .codegen import kernel_source, kernels_of


def missing(found: Toolchain) -> str:
    """What a build lacks and how to get it, as one message; empty if nothing does."""
    lines = nvcc.lacking(found)
    return "\n".join(["a build of normalizations needs:", *lines]) if lines else ""


def inputs(
    source: str,
    toolchain: Toolchain | None = None,
    progress: Callable[[int, int], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Path]:
    """The objects that a generated source is linked with, built where they are not there.

    Raises ToolchainError for what is missing, how to get it; for a cache folder that is not
    private; or with nvcc's words, if it fails.
    """
    wanted = kernels_of(source)
    if not wanted:
        return []
    found = find() if toolchain is None else toolchain
    if text := missing(found):
        raise ToolchainError(text)
    assert found.nvcc is not None
    units = [nvcc.Unit(name, kernel_source(name), nvcc.options([arch])) for arch, name in wanted]
    folder = private_folder("norm-objects", os.environ if environ is None else environ)
    return nvcc.build(found.nvcc, folder, units, progress)
