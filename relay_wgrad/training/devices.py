"""Where a trainer trains: the `Place` that a name stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm.target import Target

from legalize.cpu import host_target

from ..transform.depth_blocks import FORMS
from .compiled import Compiled, Cut, Progress, compile_module
from .options import SELECT, Options
from .origins import Origin
from .places import Place
from .schedules import is_count
from .transfers import HostTransfers

DEVICES = "cpu, cuda, cuda:N or auto"


def place(device: str | Target, options: Options | None = None) -> Place:
    """The place that a name or a CPU's target stands for; "auto" is a GPU if one can be used.

    Raises ValueError for another name, and for a GPU naming all that is missing.
    """
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise TypeError(f"on_gpu must be Options, got {options!r}")
    if options.select not in SELECT:
        raise ValueError(f"select must be {' or '.join(SELECT)}, got {options.select!r}")
    if options.blocks not in (True, False, *FORMS):
        raise ValueError(f"blocks must be a bool or of {', '.join(FORMS)}, got {options.blocks!r}")
    if not is_count(options.sizes, 1):
        raise ValueError(f"sizes must be an integer of at least 1, got {options.sizes!r}")
    if isinstance(device, Target):
        if str(device.kind.name) == "cuda":
            raise ValueError("Trainer: for a GPU give device='cuda', not a target")
        return _cpu(device)
    if not isinstance(device, str):
        raise TypeError(f"device must be {DEVICES}, or a CPU's target, got {device!r}")
    if device == "cpu":
        return _cpu(winograd=options.winograd)
    match = re.fullmatch(r"cuda(?::([0-9]{1,3}))?|auto", device)
    if match is None:
        raise ValueError(f"device must be {DEVICES}, got {device!r}")
    from . import gpu  # and with it what CUDA's kernels are built with

    index = int(match[1] or 0)
    missing = gpu.lacking(index)
    if missing and device == "auto":
        cpu = _cpu(winograd=options.winograd)
        return replace(cpu, notes=["on the CPU: " + "; ".join(missing)])
    if missing:
        raise ValueError(f"device {device!r} cannot be trained on: " + "; ".join(missing))
    return gpu.place_of(index, options)


def compiled_here(mod: tvm.IRModule, function: str) -> Any:
    """A virtual machine of a module whose `function` runs on this machine's CPU."""
    return compile_module(mod, host_target(), function=function).vm


def cpu_target(winograd: bool = Options.winograd) -> Target:
    """What a trainer on "cpu" is compiled for."""
    return host_target(allow_winograd=winograd)


def _cpu(target: Target | None = None, winograd: bool = Options.winograd) -> Place:
    def compile_for(mod: tvm.IRModule, progress: Progress, cut: Cut | None = None) -> Compiled:
        chosen = cpu_target(winograd) if target is None else target
        return compile_module(mod if cut is None else cut(mod), chosen, progress=progress)

    def recall(mod: tvm.IRModule, options: Mapping[str, Any]) -> Origin:
        return Origin(mod, options, cpu_target(winograd) if target is None else target)

    return Place("cpu", tvm.cpu(), None, compile_for, HostTransfers, norms=True, recall=recall)
