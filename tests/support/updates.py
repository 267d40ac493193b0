"""Updates' generated functions on the CPU: their host code as it is, their kernels emulated."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.updates import UPDATES, UpdatesCall
from byoc_cudnn.updates.call import NUMBERS
from byoc_cudnn.updates.codegen import numbers
from tests.support.cuda_emulated import emulated, includes


def library(folder: Path, source: str, name: str = "updates") -> Any:
    """Builds a generated source for tensors of the CPU and loads it; skips without a compiler.

    Kernels that the folder has are taken from there; `name` is the library's.
    """
    if not find().compiler or not find().cuda.complete:
        pytest.skip("no C++ compiler, or no CUDA headers")
    host = folder / f"{name}.cc"
    text = source.replace("kDLCUDA", "kDLCPU").replace("OnDevice on(device);", "")
    host.write_text(text, encoding="utf-8")
    objects = []
    for _, kernel in UPDATES.kernels_of(source):
        path = folder / f"{kernel}.cc"
        made = path.with_suffix(".o")
        objects.append(made)
        if made.exists():
            continue
        path.write_text(emulated(UPDATES.source_of(kernel)), encoding="utf-8")
        own = f"-Dtimes_together={kernel}_times -Dlaunched_together={kernel}_launched"
        command = [
            *find().compiler, *own.split(), "-std=c++20", "-O1", "-w", "-ffp-contract=off", "-fPIC",
            "-pthread", *includes(), "-c", str(path), "-o", str(made),
        ]  # fmt: skip
        subprocess.run(command, check=True)
    command = library_command(host, folder / f"{name}.so", inputs=objects)
    subprocess.run(command, check=True)
    return tvm_ffi.load_module(str(folder / f"{name}.so"))


def expected(
    call: UpdatesCall, arrays: Sequence[np.ndarray], updates: bool, runs: bool
) -> list[np.ndarray]:
    """All operands of an update after it, and its results: each operation is rounded once."""
    kind = np.dtype(call.dtype).type
    told = zip((*NUMBERS, "rest1", "rest2"), numbers(call), strict=True)
    n = {name: kind(value) for name, value in told}
    out = [np.array(a) for a in arrays]
    count, kept = len(call.counts), len(call.statistics)
    scalars_at = len(out) - call.scalars - 2 * kept - 2
    scalars = [a.copy() for a in out[scalars_at : scalars_at + call.scalars]]
    if updates:
        scalars[0] = scalars[0] + np.int64(1)
    if updates and call.rule == "adam":
        scalars[1], scalars[2] = kind(scalars[1] * n["beta1"]), kind(scalars[2] * n["beta2"])
    for i in range(count if updates else 0):
        p, g = out[i], out[count + i]
        if n["weight_decay"]:
            g = n["weight_decay"] * p + g
        step = g
        if call.rule != "sgd":
            a = out[2 * count + i]
        if call.rule == "momentum":
            a[...] = step = n["momentum"] * a + g
        elif call.rule == "adam":
            b = out[3 * count + i]
            a[...] = n["beta1"] * a + n["rest1"] * g
            b[...] = n["beta2"] * b + n["rest2"] * (g * g)
            left1, left2 = kind(1) - scalars[1], kind(1) - scalars[2]
            step = (a / left1) / (np.sqrt(b / left2) + n["eps"])
        p[...] = p - n["lr"] * step
    old = scalars_at + call.scalars
    for i in range(kept if runs else 0):
        out[old + i][...] = out[old + kept + i]
    return [*out, *scalars]


def symbols(source: str) -> list[str]:
    """What a generated source exports for calls."""
    return re.findall(r"__tvm_ffi_(\w+)\(void\*", source)
