"""Our own kernels on tensor cores on a device that is the CPU: `cuda_warps.h` has the device."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from byoc_cudnn.backends.cuda_direct.kernels import Kernel, source_of
from byoc_cudnn.backends.cuda_direct.model import ranked
from byoc_cudnn.codegen.templates import shared
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.cuda_emulated import compiler
from tests.support.grouped_cases import FAMILY_NAMES, drawn

Case = tuple[ConvProblem, tuple[str, ...], Kernel]
_DEVICE = "#include <cuda_runtime_api.h>"
_HEADER = Path(__file__).with_name("cuda_warps.h")


def cases(family: str, kinds: Sequence[ConvKind], count: int, seed: int) -> list[Case]:
    """Random problems of each kind with epilogues; by turns the kernel expected to win, and any."""
    found = []
    for kind in kinds:
        index = list(ConvKind).index(kind)
        rng = np.random.default_rng((seed, FAMILY_NAMES.index(family), index))
        for i in range(count):
            problem, name = drawn(rng, kind, family, small=True)
            epilogue = tuple(x for x in name.split("_") if x)
            choices = [c for c in ranked(problem, epilogue, 90) if c.kernel.family == family]
            chosen = choices[int(rng.integers(len(choices))) * (i % 2)]
            found.append((problem, epilogue, chosen.kernel))
    return found


def together(
    folder: Path, kernels: Sequence[Kernel], without: str = "", races: bool = False
) -> Any:
    """A library of kernels of the families on tensor cores, built in a folder.

    without : a piece of the kernels' text that is left out.
    races : `races_found` of the library counts races in shared memory (`cuda_races.h`).
    """
    return _library(folder, tuple(dict.fromkeys(kernels)), without, races)


@lru_cache(maxsize=8)
def _library(folder: Path, kernels: tuple[Kernel, ...], without: str, races: bool) -> Any:
    text = source_of(kernels)
    if without:
        assert without in text
        text = text.replace(without, "")
    return built(folder, text, ["-DRW_DIRECT_BLOCKS=3"], races)


def built(folder: Path, text: str, options: Sequence[str], races: bool = False) -> Any:
    """A library of kernels' CUDA source, which has `warp_device.h`, built in a folder."""
    assert shared("warp_device.h") in text
    text = text.replace(shared("warp_device.h"), "")
    source = text.replace(_DEVICE, f'#include "{_HEADER}"', 1)
    stem = hashlib.sha256(f"{races} {source}".encode()).hexdigest()[:16]
    file, library = folder / f"{stem}.cc", folder / f"{stem}.so"
    file.write_text(source, encoding="utf-8")
    # Each library has its own device, also beside those of `cuda_emulated`.
    command = [
        *compiler(
            _HEADER, "-O1", "-fno-strict-aliasing", "-fno-gnu-unique", *options,
            *(["-DRW_RACES"] if races else []),
        ),
        "-shared", str(file), "-o", str(library),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))
