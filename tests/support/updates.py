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
from byoc_cudnn.updates.call import NUMBERS, TILE, numbers_of
from byoc_cudnn.updates.codegen import numbers
from tests.support.cuda_emulated import aligned, emulated, objects

ADAM = {"weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
CASES = {
    "sgd float64": ("sgd", "float64", {"weight_decay": 1e-4}),
    "momentum float32": ("momentum", "float32", {"momentum": 0.9}),
    "adam float32": ("adam", "float32", ADAM),
    "decayed": ("momentum", "float32", {"momentum": 0.8, "weight_decay": 0.5}),
}
CASES["decoupled"] = ("adam", "float32", {**ADAM, "decoupled": 1.0, "clip": 0.3})
COUNTS = (5, TILE, TILE + 3, 1, 64, 1023)
STATISTICS = (7, 16)


def some_calls() -> dict[str, UpdatesCall]:
    """A call for each case, one of more tensors than a launch takes, and a count."""
    calls = {
        name: UpdatesCall(
            f"f{i}",
            rule,
            dtype,
            COUNTS,
            STATISTICS,
            numbers_of(told),
            (0, 3) if name[:3] == "dec" else (),
        )
        for i, (name, (rule, dtype, told)) in enumerate(CASES.items())
    }
    many, told = (3,) * 90, {"momentum": 0.5}
    calls["many"] = UpdatesCall("many", "momentum", "float32", many, (), numbers_of(told))
    calls["count"] = UpdatesCall("count", "count", "float32", COUNTS)
    return calls


def operands(call: UpdatesCall, rng: Any, updates: bool, runs: bool) -> list[np.ndarray]:
    """Of an update, at random; results are not among them."""
    slots = {"sgd": 0, "momentum": 1, "adam": 2}[call.rule]
    sizes = [*call.counts * 2, *call.counts * slots]
    out = [aligned(rng.standard_normal(n).astype(call.dtype)) for n in sizes]
    for second in out[3 * len(call.counts) :]:
        second[...] = np.abs(second)
    out.append(np.array(6, "int64"))
    out += [np.array(v, call.dtype) for v in (0.5, 0.9)][: call.scalars - 1]
    out += [aligned(rng.standard_normal(n).astype(call.dtype)) for n in call.statistics * 2]
    rates = np.array([0.03, 0.7 if "momentum" in call.rule else 1.0], call.dtype)
    return [*out, np.array(updates), np.array(runs), rates]


def library(folder: Path, source: str, name: str = "updates") -> Any:
    """Builds a generated source for tensors of the CPU and loads it; skips without a compiler.

    Kernels that the folder has are taken from there; `name` is the library's.
    """
    if not find().compiler or not find().cuda.complete:
        pytest.skip("no C++ compiler, or no CUDA headers")
    host = folder / f"{name}.cc"
    text = source.replace("kDLCUDA", "kDLCPU").replace("OnDevice on(device);", "")
    host.write_text(text, encoding="utf-8")
    units = [folder / f"{kernel}.cc" for _, kernel in UPDATES.kernels_of(source)]
    for unit in units:
        unit.write_text(emulated(UPDATES.source_of(unit.stem)), encoding="utf-8")
    inputs = objects(units)
    subprocess.run(library_command(host, folder / f"{name}.so", inputs=inputs), check=True)
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
    scalars_at = len(out) - call.scalars - 2 * kept - 3
    lr, factor = out[-1]
    scalars = [a.copy() for a in out[scalars_at : scalars_at + call.scalars]]
    if updates:
        scalars[0] = scalars[0] + np.int64(1)
    if updates and call.rule == "adam":
        scalars[1], scalars[2] = kind(scalars[1] * n["beta1"]), kind(scalars[2] * n["beta2"])
    for i in range(count if updates else 0):
        p, g = out[i], out[count + i]
        if factor != 1:
            g = factor * g
        if n["clip"]:
            g = np.clip(g, -n["clip"], n["clip"])
        if n["weight_decay"] and i not in call.undecayed:
            if n["decoupled"]:
                p[...] = p * (kind(1) - kind(lr * n["weight_decay"]))
            else:
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
        p[...] = p - lr * step
    old = scalars_at + call.scalars
    for i in range(kept if runs else 0):
        out[old + i][...] = out[old + kept + i]
    return [*out, *scalars]


def symbols(source: str) -> list[str]:
    """What a generated source exports for calls."""
    return re.findall(r"__tvm_ffi_(\w+)\(void\*", source)
