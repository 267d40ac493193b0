"""Generated code for the GPU that is here: built, and loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byoc_cudnn.building.compiled import library_command


def arch() -> int | None:
    """The GPU to build kernels for, as nvcc numbers it; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def built(text: str, stem: Path, inputs: Sequence[Path] | None = None) -> Path:
    """The shared library of a C++ source; RuntimeError with the compiler's words if it fails."""
    source, library = stem.with_suffix(".cc"), stem.with_suffix(".so")
    source.write_text(text, encoding="utf-8")
    command = library_command(source, library, inputs=inputs)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.stderr[:4000]}\n{' '.join(command)}")
    return library


def loaded(text: str, stem: Path, inputs: Sequence[Path] | None = None) -> Any:
    """The module of a C++ source's functions."""
    import tvm_ffi

    return tvm_ffi.load_module(str(built(text, stem, inputs)))
