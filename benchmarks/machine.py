"""What a file of results says of its run: machine, versions, commit, date."""

from __future__ import annotations

import platform
import subprocess
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from relay_wgrad.cores import usable_cores

ROOT = Path(__file__).parents[1]
PACKAGES = ("apache-tvm", "torch", "numpy", "onnx", "jax")


def facts(on_gpu: bool) -> dict[str, Any]:
    """Of this process, and of the GPU that PyTorch uses if `on_gpu`."""
    machine: dict[str, Any] = {"cpu": cpu_model(), "cores": len(usable_cores())}
    versions: dict[str, Any] = {"python": platform.python_version(), **_packages()}
    if on_gpu:
        import torch

        major, minor = torch.cuda.get_device_capability()
        machine |= {"gpu": torch.cuda.get_device_name(), "sm": f"{major}{minor}"}
        versions |= {"driver": driver(), "cuda": torch.version.cuda,
                     "cudnn": torch.backends.cudnn.version()}  # fmt: skip
    return {"date": str(date.today()), "machine": machine, "versions": versions,
            "commit": commit()}  # fmt: skip


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The checkout's, None where the tree is none: a copy on another machine."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def driver() -> str:
    """The kernel driver's version, without running a program."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
    except OSError:
        return "unknown"
    return next((w for w in words if w[:1].isdigit() and w.count(".") >= 1), "unknown")


def cpu_model() -> str:
    """The CPU's name with what tells its kind: an anonymous name is all that some hosts give."""
    path = Path("/proc/cpuinfo")
    found = dict[str, str]()
    if path.exists():
        for line in path.read_text(encoding="utf-8").split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            found[key.strip()] = value.strip()
    name = found.get("model name", platform.processor() or platform.machine())
    words = [f"{x} {found[key]}" for x, key in (("family", "cpu family"), ("model", "model"))
             if key in found]  # fmt: skip
    return ", ".join([name, *words])
