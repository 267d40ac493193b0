"""Regions of kernels that are objects: built without TVM's compiler, run on torch's tensors."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm_ffi

from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.codegen.regions import Region
from tests.support.gpu.cudnn_runner import after, destination, operands_on_device, to_numpy
from tests.support.problems import random_operands, relative_error, torch_reference

Generate = Callable[[list[Region], int], str]
Limit = Callable[[Region], float]  # the error that a region may have, relative in norm


def load(generate: Generate, regions: Iterable[Region], folder: Path) -> Any:
    """The module of the regions' functions, with kernels for the GPU that is there."""
    major, minor = torch.cuda.get_device_capability()
    source, library = folder / "regions.cc", folder / "regions.so"
    source.write_text(generate(list(regions), 10 * major + minor), encoding="utf-8")
    subprocess.run(library_command(source, library), check=True)
    return tvm_ffi.load_module(str(library))


def share(
    region: Region, function: Any, rng: np.random.Generator, limit: Limit
) -> tuple[float, bool]:
    """A random problem's error as a share of its tolerance, and whether two runs gave the same."""
    p = region.problem
    values = random_operands(p, rng)
    args = operands_on_device(p, *values)
    extra, want = after(region, torch_reference(p, *values), rng)
    args += extra
    outs = [destination(p) for _ in range(2)]
    for out in outs:
        function(*args, out)
    same = torch.equal(*(out.view(torch.uint8) for out in outs))
    return relative_error(to_numpy(outs[0]), want) / limit(region), same


def wrong_ones(functions: Any, regions: list[Region], seed: int, limit: Limit) -> list[str]:
    """What is off by more than its tolerance, differs between two runs, or fails."""
    rng = np.random.default_rng(seed)
    found, worst = [], 0.0
    for region in regions:
        line = f"{region.problem} {'_'.join(region.epilogue)} {dict(region.options)}"
        try:
            error, same = share(region, functions[region.symbol], rng, limit)
        except (RuntimeError, ValueError) as failure:
            found.append(f"{line}: {failure}")
            continue
        worst = max(worst, error)
        if not error <= 1:
            found.append(f"{line}: {error:.3g} times the tolerance")
        if not same:
            found.append(f"{line}: two runs differ")
    print(f"\n{len(regions)} problems, worst {worst:.2f} of its tolerance", *found, sep="\n")
    return found
