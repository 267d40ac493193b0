"""`python -m relay_wgrad env`: versions, CPU, threads."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.table import Table

PACKAGES = ("relay-wgrad", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "rich", "torch")


def facts() -> list[tuple[str, str]]:
    """(what, value) rows."""
    import tvm
    from tvm.target.codegen import llvm_get_system_cpu

    from . import registry

    rows = [("Python", platform.python_version()), ("platform", platform.platform())]
    rows += [(name, _version(name)) for name in PACKAGES]
    try:
        registry.check_tvm()
        rows.append(("hooks of TVM", "all found"))
    except RuntimeError as error:
        rows.append(("hooks of TVM", str(error)))
    rows.append(("CPU", str(llvm_get_system_cpu())))
    rows.append(("logical processors usable", str(len(os.sched_getaffinity(0)))))
    threads = int(tvm.get_global_func("runtime.NumThreads")())
    rows.append(("threads of TVM's pool by itself", str(threads)))
    rows.append(("TVM_NUM_THREADS", os.environ.get("TVM_NUM_THREADS", "not set")))
    rows.append(("CUDA device", "yes" if tvm.cuda(0).exist else "none that TVM can use"))
    return rows


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed" + (" (optional)" if package == "torch" else "")


def print_env() -> int:
    """Prints the table; the exit code is 0."""
    table = Table(title="relay-wgrad environment", show_header=False)
    for row in facts():
        table.add_row(*row)
    Console().print(table)
    return 0
