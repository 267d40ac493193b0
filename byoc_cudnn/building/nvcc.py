"""nvcc: objects of device code, each built once and kept in a private folder.

An object's name has its unit's and a digest of everything that it depends on: source, options,
nvcc's version and what else the unit names.  It is written under another name first and then
renamed, so it is whole or not there; of several processes that want one, the ranks of a training on
several GPUs, say, one builds it and the others wait.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from relay_wgrad.output import turn_at, working_folder

from .toolchain import Toolchain, run_tool

INSTALL = "pip install 'relay-wgrad[cutlass]'"
_SECONDS = 1800  # for one object; they take ten


@dataclass(frozen=True)
class Unit:
    """A translation unit: its name, its text, nvcc's options for it.

    `facts` are what the object depends on beside these: versions of headers.
    """

    name: str
    source: str
    options: tuple[str, ...]
    facts: tuple[str, ...] = ()


def lacking(found: Toolchain) -> list[str]:
    """What a build of device code lacks and how to get it, as lines of a message."""
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
    return lines


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


def options(archs: Sequence[int], *more: str, exactly: str = "") -> tuple[str, ...]:
    """nvcc's options for objects that go into libraries; `more` are options of their own.

    Machine code for each GPU, and PTX for GPUs newer than the last; or, with `exactly="90a"`, code
    for one GPU with all its own instructions, which no other runs.
    """
    *older, last = archs
    codes = [f"arch=compute_{arch},code=sm_{arch}" for arch in older]
    codes.append(f"arch=compute_{last},code=[sm_{last},compute_{last}]")
    if exactly:
        codes = [f"arch=compute_{exactly},code=sm_{exactly}"]
    return (
        "-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr",
        *(word for code in codes for word in ("-gencode", code)),
        # Nothing of an object is for others, and headers' warnings are not ours.
        "-Xcompiler", "-fPIC,-fvisibility=hidden,-w", "-w", *more,
    )  # fmt: skip


def build(
    nvcc: Path,
    folder: Path,
    units: Sequence[Unit],
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """The objects of units in `folder`, built where they are not there, as many at once as cores.

    `progress` is told how many of how many are there.  Raises ToolchainError with nvcc's words.
    """
    made = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for path in pool.map(lambda unit: _object(nvcc, folder, unit), units):
            made.append(path)
            if progress is not None:
                progress(len(made), len(units))
    return made


def _object(nvcc: Path, folder: Path, unit: Unit) -> Path:
    command = [str(nvcc), *unit.options]
    facts = [unit.source, *command, nvcc_version(nvcc) or "", *unit.facts]
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]
    path = folder / f"{unit.name}-{digest}.o"
    if _is_there(path):
        return path
    with turn_at(path), working_folder(folder) as work:
        if _is_there(path):  # now
            return path
        text, made = work / "kernel.cu", work / "kernel.o"
        text.write_text(unit.source, encoding="utf-8")
        _run([*command, "-c", str(text), "-o", str(made)], unit.name)
        made.replace(path)
    return path


def _is_there(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _run(command: Sequence[str], name: str) -> None:
    run_tool(command, f"{name}: nvcc", _SECONDS)
