"""`python -m relay_wgrad env`: versions, CPU, threads, GPU, cuDNN, and what is missing.

`legalize` and `byoc_cudnn` are imported within functions: where another distribution's package
hides one of them, this is what says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..building import disk_cache

if TYPE_CHECKING:
    from byoc_cudnn.building.toolchain import Toolchain

PACKAGES = (
    "relay-wgrad",
    "apache-tvm",
    "apache-tvm-ffi",
    "apache-tvm-ffi-orcjit",
    "numpy",
    "onnx",
    "rich",
)
EXTRAS = {"torch": "torch", "safetensors": "safetensors", "pillow": "images",
          "matplotlib": "notebooks", "grandalf": "notebooks"}  # fmt: skip
"""Packages that are optional -> the extra that installs them."""


def facts() -> list[tuple[str, str]]:
    """(what, value) rows; "missing" says what a build for cuDNN lacks, the last one whether a GPU
    can be trained on and else why not.  Where one of our packages is hidden, that is the last."""
    tvm = tvm_alone()
    from .. import registry

    rows = [("Python", platform.python_version()), ("platform", platform.platform())]
    rows += [(name, _version(name)) for name in (*PACKAGES, *EXTRAS)]
    try:
        registry.check_tvm()
        rows.append(("hooks of TVM", "all found"))
    except RuntimeError as error:
        rows.append(("hooks of TVM", str(error)))
    if hidden := shadowed():
        return rows + hidden
    from byoc_cudnn.building import toolchain
    from legalize.cpu.machine import bfloat16_units, host_target

    from ..training import jpeg_reader
    from ..training.gpu import readiness

    target = host_target()
    host = target.attrs
    rows.append(("CPU", str(host["mcpu"])))
    if disabled := host.get("mattr"):
        rows.append(("of it disabled here", " ".join(word.removeprefix("-") for word in disabled)))
    rows.append(("its products of bfloat16", bfloat16_units(target)))
    rows.append(("logical processors usable", str(len(os.sched_getaffinity(0)))))
    threads = int(tvm.get_global_func("runtime.NumThreads")())
    rows.append(("threads of TVM's pool by itself", str(threads)))
    rows.append(("TVM_NUM_THREADS", os.environ.get("TVM_NUM_THREADS", "not set")))

    by_itself = bool(tvm.cuda(0).exist)
    found = toolchain.find()
    toolchain.preload(found)
    if by_itself:
        device = "yes"
    elif tvm.cuda(0).exist:
        device = "yes, after byoc_cudnn.building.toolchain.preload()"
    else:
        device = "none that TVM can use"
    rows.append(("GPU", gpu()))
    rows.append(("CUDA device", device))
    rows += build_facts(found)
    rows.append(("JPEGs of folders are read by", jpeg_reader.described()))
    rows.append(("training on a GPU", readiness()))
    return rows


def tvm_alone() -> Any:
    """TVM without PyTorch, which its import loads where there is one, for tensors that both share:
    a third of this command's seconds."""
    hides = "torch" not in sys.modules
    if hides:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        return import_module("tvm")
    finally:
        if hides:
            del sys.modules["torch"]


def build_facts(found: Toolchain) -> list[tuple[str, str]]:
    """The rows on what a build for cuDNN needs, and on what is kept of builds."""
    from byoc_cudnn.building import compilers

    rows = []
    for part in (found.cudnn, found.cuda):
        if part.complete:
            text = f"{part.version_text} ({part.source})"
        elif part.shared_library is not None:
            text = f"{part.shared_library}, without complete headers"
        else:
            text = "not found"
        rows.append((part.name, text))
        rows += [(f"{part.name}, passed over", reason) for reason in part.rejected]
    rows.append(("C++ compiler", _compiler(found)))
    rows.append(("nvcc (for CUTLASS)", str(found.nvcc or "not found")))
    rows.append(("own convolutions by", compilers.described(found)))
    rows.append(("compiled and kept", disk_cache.described()))
    rows.append(("missing", found.missing() or "nothing"))
    return rows


def shadowed() -> list[tuple[str, str]]:
    """A row for each package of ours whose name another distribution's package took.

    `legalize` is the name of another one on the package index: whichever is installed last, or
    comes first on the path, is imported.
    """
    rows = []
    for name, own in (("legalize", "rules.py"), ("byoc_cudnn", "partition.py")):
        spec = find_spec(name)
        where = Path(spec.origin).parent if spec and spec.origin else None
        if where is None or not (where / own).exists():
            rows.append(
                (name, f"not this package's: {where or 'not found'} (reinstall relay-wgrad)")
            )
    return rows


def gpu() -> str:
    """Each GPU's name, driver and memory as `nvidia-smi` tells them, or why it does not."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "none found (no nvidia-smi on PATH)"
    query = [program, "--query-gpu=name,driver_version,compute_cap,memory.total",
             "--format=csv,noheader"]  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603
            query, capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    lines = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip()
    return lines or "none found"


def _compiler(found: Toolchain) -> str:
    if not found.compiler:
        return "not found"
    words = [*found.compiler, "--version"]
    try:
        done = subprocess.run(  # noqa: S603
            words, capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(found.compiler)} does not run: {error}"
    return f"{' '.join(found.compiler)} ({done.stdout.partition(chr(10))[0]})"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        extra = EXTRAS.get(package)
        return "not installed" + (f" (optional: pip install relay-wgrad[{extra}])" if extra else "")


def run(args: argparse.Namespace) -> int:
    """Prints the rows as a table, or as one JSON object; the exit code is 0."""
    rows = facts()
    if args.json and shadowed():
        print(json.dumps(dict(rows), indent=1))
        return 0
    if args.json:
        from byoc_cudnn.building import toolchain

        found = toolchain.find()
        build = {
            "missing": found.missing(),
            "compiler": found.compiler,
            "options": found.options,
            **{
                part.name: {
                    "version": part.version,
                    "library": part.shared_library,
                    "includes": part.includes,
                    "source": part.source,
                    "passed over": part.rejected,
                }
                for part in (found.cudnn, found.cuda)
            },
        }
        print(json.dumps({**dict(rows), "build": build}, indent=1, default=str))
        return 0
    table = Table(title="relay-wgrad environment", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a path that is cut off says nothing
    for name, value in rows:
        table.add_row(name, escape(value))
    Console().print(table)
    return 0
