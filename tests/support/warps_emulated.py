"""Our own kernels on tensor cores on a device that is the CPU: `cuda_warps.h` has the device."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from byoc_cudnn.backends.cuda_direct.kernels import Kernel, source_of
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.templates import template
from tests.support.cuda_emulated import includes

_DEVICE = "#include <cuda_runtime_api.h>"
_HEADER = Path(__file__).with_name("cuda_warps.h")


def together(folder: Path, kernels: Sequence[Kernel]) -> Any:
    """A library of kernels of the families `grouped` and `few`, built in a folder."""
    return _library(folder, tuple(dict.fromkeys(kernels)))


@lru_cache(maxsize=8)
def _library(folder: Path, kernels: tuple[Kernel, ...]) -> Any:
    text = source_of(kernels).replace(template("cuda_direct", "warp_device.h"), "")
    source = text.replace(_DEVICE, f'#include "{_HEADER}"', 1)
    stem = hashlib.sha256(source.encode()).hexdigest()[:16]
    file, library = folder / f"{stem}.cc", folder / f"{stem}.so"
    file.write_text(source, encoding="utf-8")
    compiler = find().compiler
    if not compiler:
        pytest.skip("no C++ compiler")
    # Each library has its own device, also beside those of `cuda_emulated`.
    command = [
        *compiler, "-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE",
        "-fno-gnu-unique", "-DRW_DIRECT_BLOCKS=3", "-shared", "-fPIC", *includes(), str(file),
        "-o", str(library),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))
